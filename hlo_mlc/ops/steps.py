"""Writing procedures: arrays of real or complex numbers, loops, and what is put where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, loads
from hlo_mlc.expr.dtypes import I32, DType
from hlo_mlc.expr.procedure import Count, Move, Procedure, Put
from hlo_mlc.ops.elements import Complex, Element

Place = int | Expr


@dataclass(frozen=True, slots=True)
class Array:
    """Numbers that steps read and put; complex ones are two parts, side by side.  Where steps are
    written out, `known` is what has been put."""

    buffer: Buffer
    is_complex: bool = False
    known: dict[tuple[Expr, ...], Expr] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.buffer.shape[:-1] if self.is_complex else self.buffer.shape

    def __getitem__(self, at: tuple[Place, ...] | Place) -> Element:
        indices = places(at)
        if not self.is_complex:
            return self._part(indices)
        return Complex(*(self._part((*indices, index.constant(k))) for k in (0, 1)))

    def _part(self, indices: tuple[Expr, ...]) -> Expr:
        if self.known is None:
            return load(self.buffer, indices)
        return self.known.get(indices, const(0, self.buffer.dtype))


class Steps:
    """A procedure in the making, of numbers of one type; or what it would compute, an expression
    for each number that is put, where all loops are written out."""

    def __init__(self, dtype: DType, is_complex: bool, is_written_out: bool = False) -> None:
        self.dtype, self.is_complex, self.is_written_out = dtype, is_complex, is_written_out
        self._arrays: dict[str, Array] = {}
        self._open: list[list[Move]] = [[]]

    def procedure(self) -> Procedure:
        """What has been written."""
        (body,) = self._open
        return Procedure(tuple(a.buffer for a in self._arrays.values()), tuple(body))

    def array(self, name: str, *shape: int) -> Array:
        """Numbers, with nothing in them; the same ones for a name that there is already."""
        inner = (2,) if self.is_complex else ()
        return self._array(name, self.dtype, (*shape, *inner), self.is_complex)

    def real(self, name: str, *shape: int) -> Array:
        """The same, real whatever the others are."""
        return self._array(name, self.dtype, shape)

    def integers(self, name: str, *shape: int) -> Array:
        """The same of integers."""
        return self._array(name, I32, shape)

    def put(self, array: Array, at: tuple[Place, ...] | Place, element: Element) -> None:
        """`array[at] = element`; where the second part of a complex number may depend on the first
        one that was there, both are computed before either is put."""
        indices = places(at)
        if not array.is_complex:
            self._put(array, indices, element)
            return
        real, imaginary = element
        if any(one.source is array.buffer for one in loads(imaginary)):
            real, imaginary = (
                self.let(f"{array.buffer.name}_{name}", part)
                for name, part in (("re", real), ("im", imaginary))
            )
        for k, part in enumerate((real, imaginary)):
            self._put(array, (*indices, index.constant(k)), part)

    def _put(self, array: Array, indices: tuple[Expr, ...], value: Expr) -> None:
        if array.known is None:
            self._open[-1].append(Put(array.buffer, indices, value))
        else:
            array.known[indices] = value

    def let(self, name: str, element: Element) -> Element:
        """`element`, computed here."""
        array = (
            self.array(name)
            if isinstance(element, Complex)
            else self._array(name, element.dtype, ())
        )
        self.put(array, (), element)
        return array[()]

    def each(self, name: str, first: Place, end: Place, down: bool = False) -> Iterator[Expr]:
        """The index of a loop: what is written in it is done for each one from `first` to before
        `end`, or `down` from the last one."""
        first, end = places((first, end))
        if self.is_written_out:
            numbers = range(first.value, end.value)
            yield from map(index.constant, reversed(numbers) if down else numbers)
            return
        extent = end - first
        low, high = (max(0, int(bound)) for bound in index.bounds(extent))
        var = variable(name, high)
        number = var if high > 1 or low < high else index.constant(0)
        self._open.append([])
        yield end - 1 - number if down else first + number
        body = self._open.pop()
        if high and body:
            self._open[-1] += body if number is not var else [Count(var, extent, tuple(body))]

    def _array(
        self, name: str, dtype: DType, shape: tuple[int, ...], is_complex: bool = False
    ) -> Array:
        found = self._arrays.get(name)
        if found is None:
            known = {} if self.is_written_out else None
            found = Array(Buffer(name, dtype, shape, "stack"), is_complex, known)
            self._arrays[name] = found
        assert (found.buffer.dtype, found.buffer.shape) == (dtype, shape), (
            f"two arrays are called {name}"
        )
        return found


def places(at: tuple[Place, ...] | Place) -> tuple[Expr, ...]:
    """Numbers as indices."""
    at = at if isinstance(at, tuple) else (at,)
    return tuple(index.constant(i) if isinstance(i, int) else i for i in at)


def number(i: Place) -> Expr:
    """An index as an integer."""
    return apply("convert", *places(i), dtype=I32)
