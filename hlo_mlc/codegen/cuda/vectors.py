"""Vector loops: what lies side by side is loaded and stored at once; each lane computes its part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hlo_mlc.codegen.clike.spelling import choice, infix
from hlo_mlc.codegen.clike.values import Values, identifier, offset
from hlo_mlc.codegen.cuda.dialect import CUDA
from hlo_mlc.codegen.cuda.writer import Writer
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.loops.accesses import accesses
from hlo_mlc.loops.core import Accumulate, For, Store
from hlo_mlc.loops.rewrite import constant_extent
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cuda import VECTOR_BYTES
from hlo_mlc.tensor.access import is_inside

COPIED_BYTES = (4, 8, 16)
"""What one thread copies from memory to shared memory at a time.  Source: PTX ISA 9.0, cp.async."""


def write_vector(writer: Writer, stmt: For) -> None:
    """All statements of a vector loop.

    Raises: CodegenError for statements that are no stores or updates.
    """
    width = constant_extent(stmt)
    for group in _lockstep(writer, stmt):
        if len(group) == 1 and _copied(writer, group[0], stmt.var, width):
            continue
        name = writer.lines.fresh(identifier(stmt.var.name))
        loaded: dict[Expr, str] = {}
        for inner in group:
            loaded.update(_load_vectors(writer, inner, stmt.var, width, name, loaded))
        whole = {s: writer.lines.temporary() for s in group if isinstance(s, Store)
                 and s.guard is None
                 and _is_vector(writer, s.buffer, s.indices, stmt.var, width)}
        for inner, result in whole.items():
            kind = CUDA.element_type(inner.buffer.dtype)
            writer.lines.emit(f"Vector<{kind}, {width}> {result};")
        writer.bind(stmt.var, name)
        writer.lines.emit("#pragma unroll")
        with writer.braces(f"for (int {name} = 0; {name} < {width}; ++{name})"):
            values = writer.values(loaded)
            for inner in group:
                with writer.guarded(inner.guard):
                    _lane(writer, inner, values, whole.get(inner), name)
        for inner, result in whole.items():
            place = _address(writer, inner.buffer, inner.indices, stmt.var)
            writer.lines.emit(f"mlc_store<{width}>({place}, {result});")


def _copied(writer: Writer, stmt: Store | Accumulate, var: Var, width: int) -> bool:
    """Write a copy to shared memory, if that is all that a vector does: it is under way until the
    next barrier, and passes no registers."""
    if not isinstance(stmt, Store) or stmt.guard is not None or stmt.buffer not in writer.filled:
        return False
    load = stmt.value
    size = stmt.buffer.dtype.bytes * width
    if not isinstance(load, Load) or load.guard is not None or size not in COPIED_BYTES \
            or not writer.memory.places[load.source].is_constant \
            or not _is_vector(writer, load.source, load.indices, var, width) \
            or not _is_vector(writer, stmt.buffer, stmt.indices, var, width):
        return False
    to, source = (_address(writer, b, i, var) for b, i in (
        (stmt.buffer, stmt.indices), (load.source, load.indices)))
    writer.lines.emit(f"mlc_copy<{size}>({to}, {source});")
    writer.copies = True
    return True


def _lockstep(writer: Writer, stmt: For) -> Iterator[list[Store | Accumulate]]:
    """The statements of a vector, in groups of which a lane may do all before the next lane
    does any: none touches what another one writes."""
    group: list[Store | Accumulate] = []
    written: list[Buffer] = []
    for inner in stmt.body:
        if not isinstance(inner, Store | Accumulate):
            raise CodegenError(f"Expected stores and updates in a vector, got "
                               f"`{headline(inner)}`")
        touched = accesses((inner,))
        meets = any(writer.barriers.memory.may_overlap(a.buffer, b)
                    for a in touched for b in written)
        if group and (meets or inner.guard is not None):
            yield group
            group, written = [], []
        group.append(inner)
        written += [a.buffer for a in touched if a.writes]
    yield group


def _lane(writer: Writer, stmt: Store | Accumulate, values: Values, result: str | None,
          lane: str) -> None:
    """One lane's part of a statement; `result` is the vector that a store of all fills."""
    if isinstance(stmt, Accumulate):
        writer.update(stmt, values)
        return
    value, = values.write(stmt.value)
    target = values.element(stmt.buffer, stmt.indices) if result is None \
        else f"{result}.at[{lane}]"
    writer.lines.emit(f"{target} = {value};")


def _load_vectors(writer: Writer, stmt: Store | Accumulate, var: Var, width: int, lane: str,
                  known: Mapping[Expr, str]) -> dict[Expr, str]:
    """The loads of a statement that whole vectors serve, and a lane's elements of these."""
    found: dict[Expr, str] = {}
    values = (stmt.value,) if isinstance(stmt, Store) else stmt.terms
    for load in dict.fromkeys(load for e in values for load in loads(writer.memory.legalized(e))):
        if load in known or not _is_vector(writer, load.source, load.indices, var, width):
            continue
        if stmt.guard is not None and not all(map(is_inside, loads(load))):
            continue  # vectors are loaded before the guard of the statement is asked
        place = _address(writer, load.source, load.indices, var)
        if load.guard is None:
            name = writer.lines.temporary()
            writer.lines.emit(f"const auto {name} = mlc_load<{width}>({place});")
            found[load] = f"{name}.at[{lane}]"
        elif var not in load.guard.free and isinstance(load.default, Const):
            condition, = writer.values().write(load.guard)
            inside, name = writer.lines.temporary(), writer.lines.temporary()
            kind = CUDA.element_type(load.dtype)
            writer.lines.emit(f"const bool {inside} = {condition};")
            writer.lines.emit(f"Vector<{kind}, {width}> {name};")
            writer.lines.emit(f"if ({inside}) {name} = mlc_load<{width}>({place});")
            found[load] = choice(inside, f"{name}.at[{lane}]", CUDA.literal(load.default))
    return found


def _is_vector(writer: Writer, buffer: Buffer, indices: tuple[Expr, ...], var: Var,
               width: int) -> bool:
    """Whether the lanes' elements are one aligned vector in memory that has addresses."""
    size = buffer.dtype.bytes * width
    if size > VECTOR_BYTES or size & (size - 1) or buffer.scope in (
            "register", "stack", "thread"):
        return False
    position = offset(buffer, writer.memory.places[buffer], indices)
    if index.coefficient(position, var) != 1 \
            or loads(position):
        return False
    terms, constant = index.affine(position)
    return constant % width == 0 and all(c % width == 0 for a, c in terms.items()
                                         if a is not var)


def _address(writer: Writer, buffer: Buffer, indices: tuple[Expr, ...], var: Var) -> str:
    """The address of the first lane's element."""
    place = writer.memory.places[buffer]
    position = index.subtract(offset(buffer, place, indices), var)
    if position is index.constant(0):
        return place.name
    text, = writer.values().write(position)
    return infix(place.name, "+", text)
