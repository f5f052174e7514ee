"""A few places of rows: the key that takes a place is found bit by bit, from the highest.

How many keys come before one whose next bit is set says whether it is: all of a row are compared,
in vectors.  Where a bit tells none apart of those that are left, the smallest and the largest of
them say which is the next one that does, if there is any.  Where few are left, these are collected,
and more bits found among them, until one is left or all that are have the same key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import BOOL, U32
from hlo_mlc.loops.core import Accumulate, If, LoopKind, Stmt, Store, While
from hlo_mlc.loops.rewrite import allocated, serial, vectorized
from hlo_mlc.templates.base import decoded
from hlo_mlc.templates.by_hand import across, shared_out
from hlo_mlc.templates.sorting.records import STACK, Body, Place, Sorting, alone, in_row
from hlo_mlc.tensor.combine import named_combiner

# Elements that are looked at together, those left that are collected, and elements of a row from
# which on that pays.
BLOCK, LEFT, LONG = 64, 512, 4096
# Stages of a kernel, each of which looks for places, that may have their keys on the stack.
_AT_ONCE = 4
_ADD = named_combiner("add", U32)
_ZERO, _NONE = const(0, U32), index.constant(0)


def by_bits(sorting: Sorting) -> Body:
    """Each row in a task of its own."""
    n, (key,) = sorting.element.extent, sorting.stage.sort.keys
    private = n * key.dtype.bytes <= STACK // _AT_ONCE
    keys = Buffer(
        f"{sorting.stage.name}_keys",
        key.dtype,
        (n,) if private else (sorting.rows, n),
        "stack" if private else "scratch",
    )
    if not private:
        sorting.scratch.append(keys)

    def row(number: Expr) -> Body:
        at = decoded(sorting.outer, number)
        place = alone if private else functools.partial(in_row, number)
        search = _Search(sorting, keys, place, at)
        body = (
            *across(
                "fill",
                n,
                sorting.width,
                lambda i: (Store(keys, place(i), sorting.keys(sorting.given(at, i))[0]),),
                LoopKind.SERIAL,
            ),
            serial("place", sorting.stage.sort.place.extent, search.one),
        )
        return allocated((keys,), body) if private else body

    places = sorting.stage.sort.place.extent
    total = sorting.rows * n * places * key.dtype.bits // sorting.width
    return shared_out(sorting.stage.name, sorting.rows, total, row)


class _Search:
    """Places of one row: its keys are from `low` to `low + mask` until nothing is left of that."""

    def __init__(self, sorting: Sorting, keys: Buffer, place: Place, at: dict[Var, Expr]) -> None:
        self.sorting, self.keys, self.place, self.at = sorting, keys, place, at
        self.n = sorting.element.extent
        self.low, self.mask, self.trial, self.best = (
            Buffer(f"{sorting.stage.name}_{name}", keys.dtype, (), "register")
            for name in ("low", "mask", "trial", "best")
        )
        self.rank, self.below, self.above, self.count, self.seen, self.earlier = (
            Buffer(f"{sorting.stage.name}_{name}", U32, (), "register")
            for name in ("rank", "below", "above", "count", "seen", "earlier")
        )
        self.goes = Buffer(f"{sorting.stage.name}_goes", BOOL, (), "register")
        self.few = Buffer(f"{sorting.stage.name}_few", keys.dtype, (LEFT,), "stack")

    def one(self, number: Expr) -> Body:
        """The results at one place."""
        whole = const(-1, self.keys.dtype)
        rank = apply("convert", self.sorting.rank(self.at, number), dtype=U32)
        start = (
            Store(self.rank, (), rank),
            Store(self.low, (), const(0, self.keys.dtype)),
            Store(self.mask, (), whole),
            Store(self.below, (), _ZERO),
            Store(self.above, (), const(self.n, U32)),
        )
        most = LEFT if self.n >= LONG else 1
        found: Body = (
            While(
                self._more_than(most),
                (
                    Store(self.earlier, (), self._left()),
                    *self._step(self._counted(self.n, self._comes_first)),
                    If(apply("eq", self._left(), load(self.earlier, ())), self._spanned()),
                ),
            ),
        )
        if most > 1:
            found += (If(self._more_than(1), self._among_few()),)
        registers = (
            self.low,
            self.mask,
            self.trial,
            self.rank,
            self.below,
            self.above,
            self.count,
            self.goes,
            self.earlier,
        )
        return allocated(registers, (*start, *found, *self._hand_out(number)))

    def _more_than(self, most: int) -> Expr:
        """Whether more keys have all bits found so far, and there are bits in which they differ."""
        return apply(
            "and",
            apply("ne", load(self.mask, ()), const(0, self.keys.dtype)),
            apply("gt", self._left(), const(most, U32)),
        )

    def _left(self) -> Expr:
        return apply("sub", load(self.above, ()), load(self.below, ()))

    def _beyond(self, i: Expr) -> Expr:
        """At most `mask` where a key has all bits found so far."""
        return apply("sub", self._key(i), load(self.low, ()))

    def _is_left(self, i: Expr) -> Expr:
        return apply("le", self._beyond(i), load(self.mask, ()))

    def _key(self, i: Expr) -> Expr:
        return load(self.keys, self.place(i))

    def _comes_first(self, i: Expr) -> Expr:
        return apply("lt", self._key(i), load(self.trial, ()))

    def _step(self, counted: Body) -> Body:
        """One more bit, by how many keys come before the one that has it."""
        half = apply("shr_logical", load(self.mask, ()), const(1, self.keys.dtype))
        bit = apply("xor", load(self.mask, ()), half)
        goes, count = load(self.goes, ()), load(self.count, ())
        return (
            Store(self.trial, (), apply("or", load(self.low, ()), bit)),
            *counted,
            Store(self.goes, (), apply("le", count, load(self.rank, ()))),
            Store(self.below, (), apply("select", goes, count, load(self.below, ()))),
            Store(self.above, (), apply("select", goes, load(self.above, ()), count)),
            Store(self.low, (), apply("select", goes, load(self.trial, ()), load(self.low, ()))),
            Store(self.mask, (), half),
        )

    def _counted(
        self, n: int, holds: Callable[[Expr], Expr], first: Expr = _NONE, before: Expr = _ZERO
    ) -> Body:
        """In `count`: of how many elements, from the first on, something holds, and so many."""
        width = self.sorting.width
        lanes = Buffer(f"{self.sorting.stage.name}_lanes", U32, (width,), "register")
        blocks, rest = divmod(n, BLOCK) if n > BLOCK else (0, n)

        def each(i: Expr, lane: Expr) -> Body:
            one = apply("convert", holds(index.add(first, i)), dtype=U32)
            return (Accumulate((lanes,), (lane,), _ADD, (one,)),)

        def vectors(begin: Expr, count: int) -> Body:
            whole, odd = divmod(count, width)
            body: list[Stmt] = []
            for v in range(whole + (odd > 0)):
                here = index.add(begin, v * width)
                body.append(
                    vectorized(
                        "lane",
                        width if v < whole else odd,
                        lambda i, here=here: each(index.add(here, i), i),
                    )
                )
            return tuple(body)

        body = (vectorized("lane", width, lambda i: (Store(lanes, (i,), _ZERO),)),)
        if blocks:
            body += (serial("block", blocks, lambda b: vectors(index.multiply(b, BLOCK), BLOCK)),)
        body += vectors(index.constant(blocks * BLOCK), rest)
        return allocated(
            (lanes,),
            (
                *body,
                Store(self.count, (), before),
                vectorized(
                    "lane",
                    width,
                    lambda i: (Accumulate((self.count,), (), _ADD, (load(lanes, (i,)),)),),
                ),
            ),
        )

    def _spanned(self) -> Body:
        """From the first bit on in which the keys that are left differ."""
        dtype, width = self.keys.dtype, self.sorting.width
        ends = {
            name: Buffer(f"{self.sorting.stage.name}_{name}", dtype, (), "register")
            for name in ("min", "max")
        }
        vectors = {
            name: Buffer(f"{b.name}s", dtype, (width,), "register") for name, b in ends.items()
        }
        combiners = {name: named_combiner(name, dtype) for name in ends}

        def none(name: str) -> Expr:
            return combiners[name].identity[0]

        def look(i: Expr) -> Body:
            return tuple(
                Accumulate(
                    (vectors[name],),
                    (index.floormod(i, width),),
                    combiners[name],
                    (apply("select", self._is_left(i), self._key(i), none(name)),),
                )
                for name in ends
            )

        def every(change: Callable[[str, Expr], Stmt]) -> Stmt:
            return vectorized("lane", width, lambda i: tuple(change(name, i) for name in ends))

        least, most = (load(ends[name], ()) for name in ends)
        differs = apply("xor", least, most)
        for power in range(dtype.bits.bit_length() - 1):
            differs = apply("or", differs, apply("shr_logical", differs, const(1 << power, dtype)))
        return allocated(
            (*ends.values(), *vectors.values()),
            (
                every(lambda name, i: Store(vectors[name], (i,), none(name))),
                *across("look", self.n, width, look, LoopKind.SERIAL),
                *(Store(b, (), none(name)) for name, b in ends.items()),
                every(
                    lambda name, i: Accumulate(
                        (ends[name],), (), combiners[name], (load(vectors[name], (i,)),)
                    )
                ),
                Store(self.mask, (), differs),
                Store(self.low, (), apply("and", least, apply("not", load(self.mask, ())))),
            ),
        )

    def _among_few(self) -> Body:
        """The bits that are left, found among the keys that have all bits found so far."""
        width, few, base = self.sorting.width, self.few, self.seen
        none = const(-1, few.dtype)  # comes before no other
        cleared = across("few", LEFT, width, lambda i: (Store(few, (i,), none),), LoopKind.SERIAL)
        steps = self._step(
            self._counted(
                LEFT,
                lambda i: apply("lt", load(few, (i,)), load(self.trial, ())),
                before=load(base, ()),
            )
        )
        return allocated(
            (few, base),
            (
                *cleared,
                Store(self.count, (), _ZERO),
                *self._collect(),
                Store(base, (), load(self.below, ())),
                While(self._more_than(1), steps),
            ),
        )

    def _collect(self) -> Body:
        """In `few`: the keys that have all bits found so far, `count` of them."""
        width, best, held = self.sorting.width, self.best, self.count
        least = named_combiner("min", best.dtype)
        blocks, rest = divmod(self.n, BLOCK)

        def take(i: Expr) -> Body:
            wanted = self._is_left(i)
            to = as_index(load(held, ()))
            fits = apply("and", wanted, index.compare("lt", to, LEFT))
            return (
                Store(self.few, (to,), self._key(i), fits),
                Store(held, (), apply("add", load(held, ()), apply("convert", wanted, dtype=U32))),
            )

        def block(b: Var) -> Body:
            begin = index.multiply(b, BLOCK)
            bests = Buffer(f"{self.sorting.stage.name}_bests", best.dtype, (width,), "register")
            look: list[Stmt] = [
                vectorized(
                    "lane",
                    width,
                    lambda i: (Store(bests, (i,), self._beyond(index.add(begin, i))),),
                )
            ]
            for v in range(1, BLOCK // width):
                here = index.add(begin, v * width)
                look.append(
                    vectorized(
                        "lane",
                        width,
                        lambda i, here=here: (
                            Accumulate((bests,), (i,), least, (self._beyond(index.add(here, i)),)),
                        ),
                    )
                )
            return allocated(
                (bests,),
                (
                    *look,
                    Store(best, (), least.identity[0]),
                    vectorized(
                        "lane",
                        width,
                        lambda i: (Accumulate((best,), (), least, (load(bests, (i,)),)),),
                    ),
                    If(
                        apply("le", load(best, ()), load(self.mask, ())),
                        (serial("taken", BLOCK, lambda i: take(index.add(begin, i))),),
                    ),
                ),
            )

        body = allocated((best,), (serial("block", blocks, block),))
        if rest:
            body += (serial("taken", rest, lambda i: take(index.add(blocks * BLOCK, i))),)
        return body

    def _hand_out(self, number: Expr) -> Body:
        """The element that takes the place: of those that are left, which have one key, as many
        come before it as places are left."""
        s, n, seen = self.sorting, self.n, self.seen
        left = apply("sub", load(self.rank, ()), load(self.below, ()))
        begin, before, position = (
            Buffer(f"{s.stage.name}_{name}", U32, (), "register")
            for name in ("begin", "before", "position")
        )

        def unless_behind(count: Buffer, **new: Expr) -> Body:
            """Stored as long as what is looked for is not behind what was counted."""
            not_yet = apply("le", load(count, ()), left)
            return tuple(
                Store(b, (), apply("select", not_yet, new[name], load(b, ())))
                for name, b in (("begin", begin), ("before", before), ("position", position))
                if name in new
            )

        def block(first: Expr, count: int) -> Body:
            return (
                *unless_behind(
                    seen, begin=apply("convert", first, dtype=U32), before=load(seen, ())
                ),
                *self._counted(count, self._is_left, first),
                Store(seen, (), apply("add", load(seen, ()), load(self.count, ()))),
            )

        def one(i: Var) -> Body:
            here = index.minimum(index.add(as_index(load(begin, ())), i), n - 1)
            found = apply("convert", self._is_left(here), dtype=U32)
            return (
                *unless_behind(before, position=apply("convert", here, dtype=U32)),
                Store(before, (), apply("add", load(before, ()), found)),
            )

        body: Body = tuple(Store(b, (), _ZERO) for b in (seen, begin, before, position))
        whole, rest = divmod(n, BLOCK)
        if whole:
            body += (serial("block", whole, lambda b: block(index.multiply(b, BLOCK), BLOCK)),)
        if rest:
            body += block(index.constant(whole * BLOCK), rest)
        there = index.minimum(as_index(load(position, ())), n - 1)
        return allocated(
            (seen, begin, before, position),
            (
                *body,
                serial("one", min(n, BLOCK), one),
                *s.results(self.at, number, s.given(self.at, there)),
            ),
        )
