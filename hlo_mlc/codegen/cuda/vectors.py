"""Vector loops: what lies side by side is loaded and stored at once; lanes compute their parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hlo_mlc.codegen.clike.spelling import choice, infix
from hlo_mlc.codegen.clike.values import Values, identifier, offset
from hlo_mlc.codegen.cuda.dialect import CUDA
from hlo_mlc.codegen.cuda.pairs import load_pairs, pair_of, stored_pairs
from hlo_mlc.codegen.cuda.writer import Writer
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.loops.accesses import Access, accesses
from hlo_mlc.loops.core import Accumulate, For, Stmt, Store
from hlo_mlc.loops.rewrite import constant_extent
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cuda import VECTOR_BYTES
from hlo_mlc.tensor.access import Pair, is_inside

COPIED_BYTES = (4, 8, 16)
"""What one thread copies from memory to shared memory at a time.  Source: PTX ISA 9.0, cp.async."""


def write_vector(writer: Writer, stmt: For) -> None:
    """All statements of a vector loop.

    Raises: CodegenError for statements that are no stores or updates.
    """
    width = constant_extent(stmt)
    for group in lockstep(writer, stmt.body):
        if len(group) == 1 and _copied(writer, group[0], stmt.var, width):
            continue
        name = writer.lines.fresh(identifier(stmt.var.name))
        loaded: dict[Expr, str] = {}
        for inner in group:
            loaded.update(_load_vectors(writer, inner, stmt.var, width, name, loaded))
        whole = _stored_vectors(writer, group, stmt.var, width, name)
        for vector in dict.fromkeys(vector for vector, _ in whole.values()):
            writer.lines.emit(f"Vector<{vector.kind}, {vector.count}> {vector.name};")
        writer.bind(stmt.var, name)
        writer.lines.emit("#pragma unroll")
        with writer.braces(f"for (int {name} = 0; {name} < {width}; ++{name})"):
            values = writer.values(loaded)
            for inner in group:
                with writer.guarded(inner.guard):
                    load_pairs(writer, values, inner.terms)
                    _, target = whole.get(inner, (None, None))
                    _lane(writer, inner, values, target)
        for vector in dict.fromkeys(vector for vector, _ in whole.values()):
            writer.lines.emit(f"mlc_store<{vector.count}>({vector.address}, {vector.name});")


class _Vector(NamedTuple):
    """What all lanes store."""

    name: str
    kind: str
    count: int
    address: str


def _stored_vectors(
    writer: Writer, group: Sequence[Store | Accumulate], var: Var, width: int, lane: str
) -> dict[Store, tuple[_Vector, str]]:
    """The stores that together fill whole vectors, and a lane's element of these."""
    stores = [s for s in group if isinstance(s, Store) and s.guard is None]

    def vector(stmt: Store, count: int, pair: Pair | None = None) -> _Vector:
        return _Vector(
            writer.lines.temporary(),
            CUDA.element_type(stmt.buffer.dtype),
            count,
            _address(writer, stmt.buffer, stmt.indices, var, pair),
        )

    found: dict[Store, tuple[_Vector, str]] = {}
    for stmt in stores:
        if _is_vector(writer, stmt.buffer, stmt.indices, var, width):
            whole = vector(stmt, width)
            found[stmt] = whole, f"{whole.name}.at[{lane}]"
    for pair, both in stored_pairs(stores).items():
        if _are_vector(writer, pair, var, width):
            whole = vector(both[0], 2 * width, pair)
            found.update(
                (stmt, (whole, f"{whole.name}.at[{lane} * 2 + {k}]"))
                for k, stmt in sorted(both.items())
            )
    return found


def _copied(writer: Writer, stmt: Store | Accumulate, var: Var, width: int) -> bool:
    """Write a copy to shared memory, if that is all that a vector does: it is under way until the
    next barrier, and passes no registers."""
    if not isinstance(stmt, Store) or stmt.guard is not None or stmt.buffer not in writer.filled:
        return False
    load = stmt.value
    size = stmt.buffer.dtype.bytes * width
    if (
        not isinstance(load, Load)
        or load.guard is not None
        or size not in COPIED_BYTES
        or not writer.memory.places[load.source].is_constant
        or not _is_vector(writer, load.source, load.indices, var, width)
        or not _is_vector(writer, stmt.buffer, stmt.indices, var, width)
    ):
        return False
    to, source = (
        _address(writer, b, i, var)
        for b, i in ((stmt.buffer, stmt.indices), (load.source, load.indices))
    )
    writer.lines.emit(f"mlc_copy<{size}>({to}, {source});")
    writer.copies = True
    return True


def lockstep(writer: Writer, statements: Sequence[Stmt]) -> Iterator[list[Store | Accumulate]]:
    """The statements of a vector, in groups of which a lane may do all before the next lane
    does any: none touches what another one writes."""
    group: list[Store | Accumulate] = []
    written: list[Access] = []
    for inner in statements:
        if not isinstance(inner, Store | Accumulate):
            raise CodegenError(f"Expected stores and updates in a vector, got `{headline(inner)}`")
        touched = accesses((inner,))
        meets = any(
            writer.barriers.memory.may_overlap(a.buffer, b.buffer) and not _are_apart(a, b)
            for a in touched
            for b in written
        )
        if group and (meets or inner.guard is not None or group[-1].guard is not None):
            yield group
            group, written = [], []
        group.append(inner)
        written += [a for a in touched if a.writes]
    yield group


def _are_apart(a: Access, b: Access) -> bool:
    """Whether they are the two elements of pairs, whichever pairs these are."""
    return (
        a.buffer == b.buffer
        and Pair.of(a.buffer, a.indices) is not None
        and Pair.of(b.buffer, b.indices) is not None
        and Pair.element(a.indices) != Pair.element(b.indices)
    )


def _lane(writer: Writer, stmt: Store | Accumulate, values: Values, target: str | None) -> None:
    """One lane's part of a statement; `target` is its element of the vector that a store of all
    fills."""
    if isinstance(stmt, Accumulate):
        writer.update(stmt, values)
        return
    (value,) = values.write(stmt.value)
    target = target or values.element(stmt.buffer, stmt.indices)
    writer.lines.emit(f"{target} = {value};")


def _load_vectors(
    writer: Writer,
    stmt: Store | Accumulate,
    var: Var,
    width: int,
    lane: str,
    known: Mapping[Expr, str],
) -> dict[Expr, str]:
    """The loads of a statement that whole vectors serve, and a lane's elements of these."""
    found: dict[Expr, str] = {}
    for load in dict.fromkeys(
        load for e in stmt.terms for load in loads(writer.memory.legalized(e))
    ):
        if load in known or load in found:
            continue
        pair = pair_of(load)
        if pair is not None and stmt.guard is None and _are_vector(writer, pair, var, width):
            name = writer.lines.temporary()
            place = _address(writer, load.source, load.indices, var, pair)
            writer.lines.emit(f"const auto {name} = mlc_load<{2 * width}>({place});")
            found.update(
                (
                    Load(pair.buffer, (*pair.point, index.constant(k))),
                    f"{name}.at[{lane} * 2 + {k}]",
                )
                for k in range(2)
            )
            continue
        if not _is_vector(writer, load.source, load.indices, var, width):
            continue
        if stmt.guard is not None and not all(map(is_inside, loads(load))):
            continue  # vectors are loaded before the guard of the statement is asked
        place = _address(writer, load.source, load.indices, var)
        if load.guard is None:
            name = writer.lines.named("auto", f"mlc_load<{width}>({place})")
            found[load] = f"{name}.at[{lane}]"
        elif var not in load.guard.free and isinstance(load.default, Const):
            (condition,) = writer.values().write(load.guard)
            inside, name = writer.lines.temporary(), writer.lines.temporary()
            kind = CUDA.element_type(load.dtype)
            writer.lines.emit(f"const bool {inside} = {condition};")
            writer.lines.emit(f"Vector<{kind}, {width}> {name};")
            writer.lines.emit(f"if ({inside}) {name} = mlc_load<{width}>({place});")
            found[load] = choice(inside, f"{name}.at[{lane}]", CUDA.literal(load.default))
    return found


def _is_vector(
    writer: Writer, buffer: Buffer, indices: tuple[Expr, ...], var: Var, width: int
) -> bool:
    """Whether the lanes' elements are one aligned vector in memory that has addresses."""
    size = buffer.dtype.bytes * width
    if size > VECTOR_BYTES or size & (size - 1) or buffer.scope in ("register", "stack", "thread"):
        return False
    return _is_aligned(offset(buffer, writer.memory.places[buffer], indices), var, width, 1)


def _are_vector(writer: Writer, pair: Pair, var: Var, width: int) -> bool:
    """Whether the lanes' pairs are one aligned vector in memory."""
    size = 2 * width * pair.buffer.dtype.bytes
    if size > VECTOR_BYTES or size & (size - 1):
        return False
    place = writer.memory.places[pair.buffer]
    first = offset(pair.buffer, place, (*pair.point, index.constant(0)))
    return _is_aligned(first, var, 2 * width, 2)


def _is_aligned(position: Expr, var: Var, count: int, step: int) -> bool:
    """Whether lanes go on from multiples of `count` by `step`."""
    if index.coefficient(position, var) != step or loads(position):
        return False
    terms, constant = index.affine(position)
    return constant % count == 0 and all(c % count == 0 for a, c in terms.items() if a is not var)


def _address(
    writer: Writer, buffer: Buffer, indices: tuple[Expr, ...], var: Var, pair: Pair | None = None
) -> str:
    """The address of the first lane's element, or pair."""
    place = writer.memory.places[buffer]
    if pair is None:
        position = offset(buffer, place, indices) - var
    else:
        position = offset(buffer, place, (*pair.point, index.constant(0))) - var * 2
    if position is index.constant(0):
        return place.name
    (text,) = writer.values().write(position)
    return infix(place.name, "+", text)
