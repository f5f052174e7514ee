"""Where families get their operands and numbers from: drawn at random, or a step's own again."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from fuzzing.program import Operand, Step, UnfitError

T = TypeVar("T")
MOST_ELEMENTS = 4096
"""Of a value of a small program: the reference takes about a microsecond for each."""
RECENT = 4
"""Every other operand is one of so many latest values, so that programs have depth."""


class Draws(ABC):
    """The choices behind one step; subclasses say where they come from."""

    def __init__(self, values: Mapping[str, Operand], most_elements: int, x64: bool) -> None:
        self.values, self.most_elements, self.x64 = values, most_elements, x64
        self.operands: list[str] = []
        self.numbers: list[int] = []

    @abstractmethod
    def _number(self, count: int) -> int: ...

    @abstractmethod
    def _value(self, fits: Callable[[Operand], bool]) -> Operand: ...

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1."""
        if count < 1:
            raise UnfitError("nothing to choose from")
        number = self._number(count)
        self.numbers.append(number)
        return number

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def among(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def value(
        self,
        kinds: str = "fiubc",
        rank: int = 0,
        most_rank: int = 9,
        fits: Callable[[Operand], bool] = lambda value: True,
    ) -> Operand:
        """A value of one of these kinds of dtype, with `rank` or more axes."""

        def allowed(value: Operand) -> bool:
            return value.kind in kinds and rank <= value.rank <= most_rank and fits(value)

        found = self._value(allowed)
        self.operands.append(found.name)
        return found

    def like(self, value: Operand) -> str:
        """Something of the same dtype that goes with all elements of `value`."""
        match self.below(4):
            case 0 if value.kind in "fiuc":
                return f"jnp.asarray({self.among((2, 3, 1))}, {value.dtype!r})"
            case 1 if value.rank > 1:
                row = self.value(
                    fits=lambda v: (
                        v.dtype == value.dtype and v.shape == value.shape[value.rank - v.rank :]
                    )
                )
                return str(row)
            case 2 if value.kind in "fiuc" and value.rank:
                return f"table({(value.shape[-1],)}, {value.dtype!r})"
            case _:
                return str(self.same(value))

    def same(self, value: Operand) -> Operand:
        """A value of the same type; it may be the same one."""
        return self.value(fits=lambda v: (v.dtype, v.shape) == (value.dtype, value.shape))

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """All of them, in any order."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]

    def axis(self, value: Operand) -> int:
        return self.below(value.rank)

    def axes(self, value: Operand) -> tuple[int, ...]:
        """One or more axes, in order."""
        chosen = self.between(1, 2**value.rank - 1)
        return tuple(a for a in range(value.rank) if chosen >> a & 1)


class Random(Draws):
    """New choices."""

    def __init__(
        self, rng: random.Random, values: Mapping[str, Operand], most_elements: int, x64: bool
    ) -> None:
        super().__init__(values, most_elements, x64)
        self._rng = rng

    def _number(self, count: int) -> int:
        return self._rng.randrange(count)

    def _value(self, fits: Callable[[Operand], bool]) -> Operand:
        found = [v for v in self.values.values() if fits(v)]
        if not found:
            raise UnfitError("no value of such a type")
        recent = self._rng.random() < 0.5
        return self._rng.choice(found[-RECENT:] if recent else found)


class Again(Draws):
    """The choices of a step, for operands whose types may have changed since."""

    def __init__(self, step: Step, values: Mapping[str, Operand], x64: bool) -> None:
        super().__init__(values, 1 << 30, x64)
        self._numbers, self._operands = iter(step.numbers), iter(step.operands)

    def _number(self, count: int) -> int:
        return next(self._numbers, 0) % count

    def _value(self, fits: Callable[[Operand], bool]) -> Operand:
        name = next(self._operands, None)
        if name is None or name not in self.values or not fits(self.values[name]):
            raise UnfitError(f"{name} is not of such a type")
        return self.values[name]
