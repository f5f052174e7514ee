"""Scalar replacement: what loops carry goes from trip to trip in registers, not through memory.

    t[] = 0                             alloc t.n: f32 register:
    for n in trips:                       t.n[] = t[]
      t[] = f(t[], x[n])         ->       for n in trips:
                                            t.n[] = f(t.n[], x[n])
                                          t[] = t.n[]

    for n in trips:                     alloc y.n1: f32 register:
      y[n + 1] = f(y[n], x[n])   ->       y.n1[] = y[0]
                                          for n in trips:
                                            y.n1[] = f(y.n1[], x[n])
                                            y[n + 1] = y.n1[]

A value that was just stored is loaded again after four to ten cycles, longer than an operation
takes.  Source: D. Callahan, S. Carr and K. Kennedy, Improving register allocation for subscripted
variables, 1990.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.loops.accesses import SIDE_BY_SIDE, Access, accesses, is_always_entered, is_full
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    Call,
    For,
    If,
    LoopKind,
    Stmt,
    Store,
    While,
    bodies,
    walk,
)
from hlo_mlc.loops.rewrite import (
    Body,
    allocated,
    constant_extent,
    map_expressions,
    redirect,
    with_bodies,
)
from hlo_mlc.loops.rewrite import loop as make_loop
from hlo_mlc.loops.touching import contains, solid

FARTHEST = 4  # trips for which a value is kept: each is one more register

Shifted = tuple[list[Buffer], Body, For]
"""Registers, how they begin, and the loop that uses them."""


def replace_scalars(parts: Sequence[Body], most: int) -> list[Body]:
    """The parts of a kernel, one after the other, with registers for what their serial loops carry:
    buffers of at most `most` elements, and the last elements of series."""
    used = Counter(access.buffer for part in parts for access in accesses(part))
    scalars = _Scalars(used, frozenset(b for b in used if _fits(b, most)))
    return [scalars.replaced(part) for part in parts]


@dataclass(frozen=True, slots=True)
class _Scalars:
    """`used`: how often the kernel touches each buffer in all; `may_hold`: those of them that may
    be registers; `whole`: those of these of which every element is written before the statement at
    hand."""

    used: Counter[Buffer]
    may_hold: frozenset[Buffer]
    whole: set[Buffer] = field(default_factory=set)

    def replaced(self, statements: Body) -> Body:
        """The statements with registers."""
        result: list[Stmt] = []
        for stmt in statements:
            if (
                isinstance(stmt, While) or (isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL)
            ) and not any(isinstance(s, Call) for s in walk(stmt.body)):
                result += self._loop(stmt)
            elif isinstance(stmt, If):
                result.append(self._inside(stmt))
            else:
                result.append(stmt)
            if self.may_hold:
                self.whole.update(
                    a.buffer for a in accesses((stmt,)) if a.buffer in self.may_hold and _fills(a)
                )
        return tuple(result)

    def _loop(self, stmt: For | While) -> Body:
        by_buffer = _by_buffer(stmt)
        numbers = {s.var for s in walk(stmt.body) if isinstance(s, For) and _is_written_out(s)}
        name = stmt.var.name if isinstance(stmt, For) else "while"
        before: Body = ()
        behind: Body = ()
        kept: list[Buffer] = []
        private: list[Buffer] = []
        renamed: dict[Buffer, Buffer] = {}
        for buffer, found in by_buffer.items():
            if (
                buffer not in self.may_hold
                or not any(a.writes for a in found)
                or not all(_is_fixed(a, stmt, numbers) for a in found)
            ):
                continue
            shape = _with_room(buffer.shape) if any(map(_in_lanes, found)) else buffer.shape
            own = Buffer(_name_for(buffer, name, stmt), buffer.dtype, shape, "register")
            begins = bool(found[0].path) and _fills(found[0].within(1))
            if begins and buffer.scope == "scratch" and self.used[buffer] == len(found):
                private.append(own)
            elif (begins and isinstance(stmt, For) and is_full(stmt)) or buffer in self.whole:
                kept.append(own)
                before += (
                    ()
                    if begins and isinstance(stmt, For) and is_full(stmt)
                    else _copied(buffer, own, buffer.shape)
                )
                behind += _copied(own, buffer, buffer.shape)
            else:
                continue
            renamed[buffer] = own
        if renamed:
            (stmt,) = redirect((stmt,), renamed)
            stmt = with_bodies(stmt, (allocated(private, stmt.body),))
        for buffer, found in by_buffer.items():
            if (
                isinstance(stmt, For)
                and buffer not in renamed
                and _is_read_first(buffer, found)
                and (shifted := _shifted(stmt, buffer))
            ):
                registers, first, stmt = shifted
                kept += registers
                before += first
        return allocated(kept, (*before, self._inside(stmt), *behind))

    def _inside(self, stmt: Stmt) -> Stmt:
        """The same in its bodies; what they fill need not be filled behind them."""
        return with_bodies(
            stmt,
            tuple(
                _Scalars(self.used, self.may_hold, set(self.whole)).replaced(body)
                for body in bodies(stmt)
            ),
        )


def _name_for(buffer: Buffer, loop: str, stmt: For | While) -> str:
    """What the registers of a buffer are called in a loop, in which a tile may have their name."""
    taken = {s.buffer.name for s in walk(stmt.body) if isinstance(s, Allocate)}
    name = f"{buffer.name}.{loop}"
    return f"{name}.r" if name in taken else name


def _is_written_out(loop: For) -> bool:
    """Whether code has no counter for a loop."""
    return loop.kind in (LoopKind.UNROLL, LoopKind.VECTORIZE) or constant_extent(loop) == 1


def _by_buffer(stmt: Stmt) -> dict[Buffer, list[Access]]:
    found: dict[Buffer, list[Access]] = {}
    for access in accesses((stmt,)):
        found.setdefault(access.buffer, []).append(access)
    return found


def _fits(buffer: Buffer, most: int) -> bool:
    """Whether a buffer may become registers."""
    return buffer.scope in ("scratch", "result") and buffer.size <= most


def _is_fixed(access: Access, stmt: For | While, numbers: set[Var]) -> bool:
    """Whether an access in a loop is to one and the same element in all trips, on one thread."""
    return (
        not access.called
        and (bool(access.path) or isinstance(stmt, While))
        and not _is_shared(access)
        and all(i.free <= numbers and not loads(i) for i in access.indices)
        and not (isinstance(access.stmt, Accumulate) and len(access.stmt.buffers) > 1)
    )


def _is_shared(access: Access) -> bool:
    """Whether tasks touch it, which have no part in the registers around them."""
    return any(
        isinstance(s, For) and s.kind in SIDE_BY_SIDE and s.kind is not LoopKind.VECTORIZE
        for s, _ in access.path
    )


def _fills(access: Access) -> bool:
    """Whether a store alone writes every element."""
    return (
        isinstance(access.stmt, Store)
        and access.writes
        and contains(solid(access), tuple((0, d - 1) for d in access.buffer.shape))
    )


def _in_lanes(access: Access) -> bool:
    """Whether neighbouring lanes access neighbours."""
    return any(
        isinstance(s, For)
        and s.kind is LoopKind.VECTORIZE
        and any(s.var in i.free for i in access.indices)
        for s, _ in access.path
    )


def _with_room(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Rows with room for a whole vector: its lanes are a power of two."""
    return (*shape[:-1], 1 << (shape[-1] - 1).bit_length())


def _copied(source: Buffer, target: Buffer, shape: tuple[int, ...]) -> Body:
    def along(indices: tuple[Expr, ...]) -> Body:
        dimension = len(indices)
        if dimension == len(shape):
            return (Store(target, indices, Load(source, indices)),)
        return (
            make_loop(
                f"{target.name}.{dimension}",
                shape[dimension],
                LoopKind.UNROLL,
                lambda i: along((*indices, i)),
            ),
        )

    return along(())


def _is_read_first(buffer: Buffer, found: Sequence[Access]) -> bool:
    """Whether a loop that touches a buffer in these places may read what an earlier trip of it
    wrote: it writes in one of them, which is not the first."""
    return (
        buffer.scope in ("scratch", "result")
        and not found[0].writes
        and sum(a.writes for a in found) == 1
    )


def _shifted(loop: For, buffer: Buffer) -> Shifted | None:
    """The loop, which stores to a buffer at one place, with what its last trips have stored there
    in registers; None where no trip reads it."""
    found = accesses((loop,), buffer)
    write = next(a for a in found if a.writes)
    stmt = write.stmt
    if (
        not is_full(loop)
        or any(map(_is_shared, found))
        or not isinstance(stmt, Store)
        or stmt.guard is not None
        or any(map(loads, stmt.indices))
        or not all(isinstance(s, Allocate) for s, _ in write.path[1:])
    ):
        return None
    ago = _trips_ago(found[: found.index(write)], stmt, loop)
    if not ago:
        return None
    new, *kept = (
        Buffer(f"{buffer.name}.{loop.var.name}.{n}", buffer.dtype, (), "register")
        for n in range(max(ago.values()) + 1)
    )
    memo: dict[Expr, Expr] = {}

    def swap(node: Expr) -> Expr | None:
        if (
            isinstance(node, Load)
            and node.source == buffer
            and node.guard is None
            and node.indices in ago
        ):
            return Load(kept[ago[node.indices] - 1], ())
        return None

    def by_registers(one: Stmt) -> Body:
        return map_expressions((one,), lambda e: build.transform(e, swap, memo))

    def rewritten(body: Body) -> Body:
        """The statements up to the store read registers, behind which their values move on."""
        at = next(
            n for n, one in enumerate(body) if one is stmt or any(one is s for s, _ in write.path)
        )
        if body[at] is stmt:
            value = build.transform(stmt.value, swap, memo)
            moved = reversed([*zip(kept, (new, *kept), strict=False)])
            stores = (
                Store(new, (), value),
                Store(buffer, stmt.indices, Load(new, ()), None, stmt.streaming),
                *(Store(to, (), Load(source, ())) for to, source in moved),
            )
            here = allocated((new,), stores)
        else:
            here = (Allocate(body[at].buffer, rewritten(body[at].body)),)
        before = (s for one in body[:at] for s in by_registers(one))
        return (*before, *here, *body[at + 1 :])

    def first(n: int) -> Load:
        earlier = {loop.var: index.constant(-n)}
        return Load(buffer, tuple(build.substitute(i, earlier) for i in stmt.indices))

    begin = tuple(Store(own, (), first(n)) for n, own in enumerate(kept, 1))
    return kept, begin, loop.around(rewritten(loop.body))


def _trips_ago(reads: Sequence[Access], store: Store, loop: For) -> dict[tuple[Expr, ...], int]:
    """Where a loop reads, before it stores, what it has stored a few trips ago, and how many."""
    ago: dict[tuple[Expr, ...], int] = {}
    for read in reads:
        trips = _apart(read.indices, store.indices, loop.var)
        if (
            trips is not None
            and 0 < trips <= min(FARTHEST, loop.var.extent)
            and read.path
            and not read.guards
            and is_always_entered(read.path[1:])
        ):
            ago[read.indices] = trips
    return ago


def _apart(read: Sequence[Expr], write: Sequence[Expr], counter: Var) -> int | None:
    """The number of trips after which what is written is read; None where that is no number."""
    trips = set()
    for r, w in zip(read, write, strict=True):
        (terms, first), (others, second) = index.affine(r), index.affine(w)
        step = terms.get(counter, 0)
        if (
            terms != others
            or second - first != step * (away := (second - first) // (step or 1))
            or any(counter in atom.free for atom in terms if atom is not counter)
        ):
            return None  # a quotient of the counter takes steps of its own
        trips |= {away} if step else set()
    return trips.pop() if len(trips) == 1 else None
