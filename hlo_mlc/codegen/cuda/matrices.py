"""Products of small matrices by a warp: what its lanes load together and multiply together."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.codegen.clike.spelling import infix
from hlo_mlc.codegen.clike.values import offset
from hlo_mlc.codegen.cuda.writer import Writer
from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Const, Expr, Load, Var
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops import matrices
from hlo_mlc.loops.core import For
from hlo_mlc.loops.matrices import Product
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cuda import WARP

_ZERO = index.constant(0)


def write_products(writer: Writer, loops: Sequence[For], lane: Var | None) -> None:
    """Neighbouring products, of which each matrix is loaded once; `lane` is the innermost thread
    variable.

    Raises: CodegenError where a loop does not say what the instruction does.
    """
    loaded: dict[tuple[str, str, int, int], str] = {}
    for loop in loops:
        product = matrices.parts(loop)
        if product is None or lane is None or lane.extent != WARP:
            raise CodegenError(
                f"Expected a product of small matrices by whole warps, got `{headline(loop)}`"
            )
        lhs = _matrix(writer, loaded, product, product.lhs, lane, matrices.row, 4)
        rhs = _matrix(writer, loaded, product, product.rhs, lane, matrices.column, 2)
        buffer, indices = product.update.buffers[0], product.update.indices
        position = offset(buffer, writer.memory.places[buffer], indices)
        if index.coefficient(position, product.e) != 1:
            raise CodegenError(f"Expected the sums of a lane side by side in `{headline(loop)}`")
        (place,) = writer.values().write(substitute(position, {product.e: _ZERO}))
        kind = "tf32" if product.lhs.dtype is F32 else product.lhs.dtype
        sums = writer.memory.places[buffer].name
        sums = sums if place == "0" else infix(sums, "+", place)
        writer.lines.emit(f"mlc_multiply_{kind}({sums}, {lhs}, {rhs});")


def _matrix(
    writer: Writer,
    loaded: dict[tuple[str, str, int, int], str],
    product: Product,
    load: Load,
    lane: Var,
    across,
    registers: int,
) -> str:
    """The name of the registers that hold a factor; `across(lane, e)` is its row or column."""
    buffer, e, k = load.source, product.e, product.k
    place = writer.memory.places[buffer]
    position = offset(buffer, place, load.indices)
    first = substitute(position, {lane: _ZERO, e: _ZERO, k: _ZERO})
    along = index.coefficient(position, k)
    # The next row is four lanes further on, the next column but one is one lane further on.
    lanes, apart = (4, 1) if across is matrices.row else (1, 2)
    step = substitute(position, {lane: index.constant(lanes), e: _ZERO, k: _ZERO}) - first
    if (
        buffer.scope != "shared"
        or not isinstance(step, Const)
        or step.value % apart
        or along is None
        or not _is_layout(position, first, along, step.value // apart, across(lane, e), k)
    ):
        raise CodegenError(f"Expected a matrix in shared memory, row by row, got {load}")
    step = step.value // apart
    (start,) = writer.values().write(first)
    key = buffer.name, start, step, along
    name = loaded.get(key)
    if name is None:
        name = loaded[key] = writer.lines.temporary()
        writer.lines.emit(f"unsigned {name}[{registers}];")
        address = place.name if start == "0" else infix(place.name, "+", start)
        writer.lines.emit(f"{_call(load, f'{name}, {address}', step, along)};")
    return name


def _call(load: Load, to: str, step: int, along: int) -> str:
    """The call that loads a matrix into registers from an address: `step` elements between rows (of
    rhs: columns), `along` between neighbours in the depth."""
    if load.dtype is F32:
        return f"mlc_load_elements({to}, {step}, {along})"
    if along == 1:
        return f"mlc_load_matrices({to}, {step})"
    if step == 1:
        return f"mlc_load_matrices_transposed({to}, {along})"
    raise CodegenError(f"Expected neighbours in one direction to lie side by side in {load}")


def _is_layout(position: Expr, first: Expr, along: int, step: int, across: Expr, k: Var) -> bool:
    expected = across * step + k * along
    return first + expected is position
