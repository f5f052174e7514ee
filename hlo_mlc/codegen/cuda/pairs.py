"""Complex numbers in memory: both parts of one are loaded and stored at once, 8 or 16 bytes.

… a[2 * i] … a[2 * i + 1] …   ->   const auto v = mlc_load<2>(a + 2 * i);  … v.at[0] … v.at[1] …
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.codegen.clike.spelling import infix
from hlo_mlc.codegen.clike.values import Values, offset
from hlo_mlc.codegen.cuda.dialect import CUDA
from hlo_mlc.codegen.cuda.writer import Writer
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Expr, Load, loads
from hlo_mlc.loops.core import Store
from hlo_mlc.target.cuda import VECTOR_BYTES
from hlo_mlc.tensor.access import Pair

_IN_MEMORY = ("operand", "result", "scratch")


def pair_of(access: Load | Store) -> Pair | None:
    """The two elements of which an access takes one, if they are one vector in memory."""
    buffer = access.source if isinstance(access, Load) else access.buffer
    if (
        buffer.scope not in _IN_MEMORY
        or 2 * buffer.dtype.bytes > VECTOR_BYTES
        or access.guard is not None
    ):
        return None
    return Pair.of(buffer, access.indices)


def load_pairs(writer: Writer, values: Values, roots: Sequence[Expr]) -> None:
    """Load what expressions take both elements of, for `values` to know."""
    found: dict[Pair, dict[int, Load]] = {}
    for load in dict.fromkeys(x for root in roots for x in loads(writer.memory.legalized(root))):
        pair = pair_of(load)
        if pair is not None and load not in values.texts:
            found.setdefault(pair, {})[pair.element(load.indices)] = load
    for pair, both in found.items():
        if len(both) == 2:
            name = writer.lines.temporary()
            writer.lines.emit(f"const auto {name} = mlc_load<2>({_address(writer, values, pair)});")
            values.texts.update((load, f"{name}.at[{k}]") for k, load in both.items())


def stored_pairs(group: Sequence[Store]) -> dict[Pair, dict[int, Store]]:
    """The pairs of which statements store both elements."""
    found: dict[Pair, dict[int, Store]] = {}
    for stmt in group:
        pair = pair_of(stmt)
        if pair is not None:
            found.setdefault(pair, {})[pair.element(stmt.indices)] = stmt
    return {pair: both for pair, both in found.items() if len(both) == 2}


def has_pairs(writer: Writer, group: Sequence[Store]) -> bool:
    """Whether statements store a pair, or load one."""
    if stored_pairs(group):
        return True
    found = {
        load: pair
        for stmt in group
        for load in loads(writer.memory.legalized(stmt.value))
        if (pair := pair_of(load)) is not None
    }
    return len(found) > len(set(found.values()))


def write_points(writer: Writer, group: Sequence[Store]) -> None:
    """Stores none of which touches what another one writes."""
    values = writer.values()
    load_pairs(writer, values, [stmt.value for stmt in group])
    texts = dict(zip(group, values.write(*(stmt.value for stmt in group)), strict=True))
    for pair, both in stored_pairs(group).items():
        name = writer.lines.temporary()
        writer.lines.emit(f"Vector<{CUDA.element_type(pair.buffer.dtype)}, 2> {name};")
        for k, stmt in sorted(both.items()):
            writer.lines.emit(f"{name}.at[{k}] = {texts.pop(stmt)};")
        writer.lines.emit(f"mlc_store<2>({_address(writer, values, pair)}, {name});")
    for stmt, text in texts.items():
        writer.lines.emit(f"{values.element(stmt.buffer, stmt.indices)} = {text};")


def _address(writer: Writer, values: Values, pair: Pair) -> str:
    """Where the first element of a pair is."""
    place = writer.memory.places[pair.buffer]
    first = (*map(writer.memory.legalized, pair.point), index.constant(0))
    (text,) = values.write(offset(pair.buffer, place, first))
    return place.name if text == "0" else infix(place.name, "+", text)
