"""What happens in which pass over the keys of a chain of two products.

A fold over the keys is known when all of them have been seen; what needs it waits for another
pass.  Softmax takes three: scores and their maximum; exponentials and their sum; weights.  Within
a pass, values are handed over as expressions.  What a later pass needs is kept for all keys, in
the place of what is read there for the last time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hlo_mlc.expr.build import load, substitute, transform
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.tensor.chain import Chain
from hlo_mlc.tensor.core import Stage
from hlo_mlc.tensor.rewrite import map_expressions

Stored = tuple[Load, Expr]  # a place and what it gets


@dataclass(slots=True)
class Pass:
    """At every key `folds` and `kept`, in this order; then `rows`: values of a row, in order.

    Expressions are over the chain's outer axes, row and key, and over `Places`.
    """

    folds: list[Stage] = field(default_factory=list)
    kept: list[Stored] = field(default_factory=list)
    rows: list[Stored] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Places:
    """Variables: of the row in its block, the key in its chunk, and the task's part of the arena
    (None where it needs none)."""

    here: Var
    near: Var
    slot: Var | None


@dataclass(frozen=True, slots=True)
class RowPasses:
    """The passes of a chain over blocks of rows.

    `before`: values of a row that need no pass.  `scores`: where the first product goes, and
    `score`: what is stored there, over its accumulator.  `weights` are made in pass `final`.
    `small`: buffers [rows]; `chunk`: [near keys, rows]; `kept`: [slot, keys, rows].
    """

    places: Places
    before: tuple[Stored, ...]
    passes: tuple[Pass, ...]
    final: int
    scores: Load
    score: Expr
    weights: Expr
    epilogue: Stage
    small: tuple[Buffer, ...]
    chunk: Buffer | None
    kept: tuple[Buffer, ...]


def row_passes(chain: Chain, rows: int, keys: int, slots: int | None, direct: bool) -> RowPasses:
    """The passes for blocks of at most `rows` and chunks of at most `keys`.

    direct: the first product stores its result from registers, not bare sums for the first pass.
    slots: the parts of the arena that hold what is kept; None where it is on the stack.
    """
    places = Places(
        Var(f"{chain.row.name}_here", INDEX, rows),
        Var(f"{chain.key.name}_near", INDEX, keys),
        None if slots is None else Var(f"{chain.row.name}_slot", INDEX, slots),
    )
    return _Planner(chain, places, direct and len(chain.first.assigns) == 1).plan()


@dataclass(slots=True)
class _Planner:
    chain: Chain
    places: Places
    direct: bool
    pass_of: dict[Buffer, int] = field(default_factory=dict)  # of a value at each key
    ready: dict[Buffer, int] = field(default_factory=dict)  # the pass that may use a row's value
    small: dict[Buffer, Buffer] = field(default_factory=dict)
    kept: dict[Buffer, Buffer] = field(default_factory=dict)
    value: dict[Buffer, Expr] = field(default_factory=dict)  # at each key, in its own pass
    memo: dict[int, dict[Expr, Expr]] = field(default_factory=dict)  # by pass

    def plan(self) -> RowPasses:
        chain = self.chain
        numbers = self._number()
        final = self._earliest(chain.last.terms)
        passes = tuple(Pass() for _ in range(max([final, *numbers]) + 1))
        self._keep(self._last_reads(numbers, final))
        scores, score, chunk = self._first(passes[0])
        before: list[Stored] = []
        for stage, number in zip(chain.between, numbers, strict=True):
            self._add(stage, number, passes, before)
        for each in passes:  # what takes the place of something else is stored after its last use
            each.kept.sort(
                key=lambda stored: any(read.source is stored[0].source for read in loads(stored[1]))
            )
        return RowPasses(
            self.places,
            tuple(before),
            passes,
            final,
            scores,
            score,
            self._local(chain.weights, final),
            map_expressions(replace(chain.last, terms=()), lambda e: self._local(e, len(passes))),
            tuple(self.small.values()),
            chunk,
            tuple(dict.fromkeys(self.kept.values())),
        )

    def _number(self) -> list[int]:
        """The pass of each stage in between; what it writes is used from then or the next one."""
        self.pass_of = {a.buffer: 0 for a in self.chain.first.assigns}
        numbers = []
        for stage in self.chain.between:
            number = self._earliest(stage.expressions)
            numbers.append(number)
            is_fold = stage.combiner is not None
            per_row = is_fold or self.chain.key not in stage.axes
            self.pass_of.update((a.buffer, number) for a in stage.along)
            table = self.ready if per_row else self.pass_of
            table.update((a.buffer, number + is_fold) for a in stage.assigns)
        return numbers

    def _earliest(self, expressions: tuple[Expr, ...]) -> int:
        """The first pass in which these can be computed."""
        sources = {read.source for e in expressions for read in loads(e)}
        return max(
            (table[b] for table in (self.pass_of, self.ready) for b in sources if b in table),
            default=0,
        )

    def _last_reads(self, numbers: list[int], final: int) -> dict[Buffer, int]:
        """The last pass in which each value at a key is read."""
        last: dict[Buffer, int] = {}
        readers = [(s.inputs, n) for s, n in zip(self.chain.between, numbers, strict=True)]
        readers.append((self.chain.last.inputs, final))
        for inputs, number in readers:
            for buffer in inputs:
                if buffer in self.pass_of:
                    last[buffer] = max(last.get(buffer, 0), number)
        return last

    def _keep(self, last_reads: Mapping[Buffer, int]) -> None:
        """Give what later passes read a place, that of what is read no more where there is one."""
        free: dict[Buffer, int] = {}  # places, with the last pass that reads what is in them
        taken = set()  # passes that overwrite what they read, one place each
        shape: tuple[int, ...] = (self.chain.key.extent, self.places.here.extent)
        scope = "stack"
        if self.places.slot is not None:
            shape, scope = (self.places.slot.extent, *shape), "scratch"
        for buffer, number in sorted(self.pass_of.items(), key=lambda item: item[1]):
            if last_reads.get(buffer, number) <= number:
                continue
            place = next(
                (
                    b
                    for b, end in free.items()
                    if b.dtype is buffer.dtype
                    and (end < number or (end == number and number not in taken))
                ),
                None,
            )
            if place is None:
                place = Buffer(f"{buffer.name}_kept", buffer.dtype, shape, scope)
            elif free[place] == number:
                taken.add(number)
            free[place] = last_reads[buffer]
            self.kept[buffer] = place

    def _kept_at(self, buffer: Buffer) -> Load:
        slot = () if self.places.slot is None else (self.places.slot,)
        return Load(self.kept[buffer], (*slot, self.chain.key, self.places.here), None, None)

    def _first(self, begin: Pass) -> tuple[Load, Expr, Buffer | None]:
        """Where the first product goes, what is stored there, and its buffer if it is of one
        chunk."""
        first, places = self.chain.first, self.places
        (accumulator,) = first.accumulators
        shape = (places.near.extent, places.here.extent)
        if self.direct and first.assigns[0].buffer in self.kept:
            scores, chunk = self._kept_at(first.assigns[0].buffer), None
        else:
            dtype = first.assigns[0].buffer.dtype if self.direct else accumulator.dtype
            chunk = Buffer(f"{first.name}_scores", dtype, shape, "stack")
            scores = Load(chunk, (places.near, places.here), None, None)
        if self.direct:
            self.value[first.assigns[0].buffer] = scores
            return scores, first.assigns[0].value, chunk
        for assign in first.assigns:
            self._assign(assign.buffer, substitute(assign.value, {accumulator: scores}), begin)
        return scores, accumulator, chunk

    def _add(
        self, stage: Stage, number: int, passes: tuple[Pass, ...], before: list[Stored]
    ) -> None:
        local = map_expressions(stage, lambda e: self._local(e, number))
        for assign in local.along:
            self._assign(assign.buffer, assign.value, passes[number])
        if stage.combiner is not None:
            passes[number].folds.append(replace(local, along=(), assigns=()))
        elif self.chain.key in stage.axes:
            for assign in local.assigns:
                self._assign(assign.buffer, assign.value, passes[number])
            return
        # A row's value is computed behind the pass before the one that may use it.
        behind = number if stage.combiner is not None else number - 1
        where = before if behind < 0 else passes[behind].rows
        for assign in local.assigns:
            small = Buffer(
                f"{assign.buffer.name}_row",
                assign.buffer.dtype,
                (self.places.here.extent,),
                "stack",
            )
            self.small[assign.buffer] = small
            where.append((Load(small, (self.places.here,), None, None), assign.value))

    def _assign(self, buffer: Buffer, value: Expr, where: Pass) -> None:
        self.value[buffer] = value
        if buffer in self.kept:
            where.kept.append((self._kept_at(buffer), value))

    def _local(self, root: Expr, number: int) -> Expr:
        """An expression of pass `number` with private values where they are then."""

        def rule(node: Expr) -> Expr | None:
            if not isinstance(node, Load):
                return None
            if node.source in self.small:
                return load(self.small[node.source], (self.places.here,))
            made = self.pass_of.get(node.source)
            if made is None:
                return None
            return self.value[node.source] if made == number else self._kept_at(node.source)

        return transform(root, rule, self.memo.setdefault(number, {}))
