"""The types of a module's arguments and results, as arrays have them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import ml_dtypes
import numpy as np
from jax.interpreters import mlir
from jaxlib.mlir import ir

from hlo_mlc.support.errors import UnsupportedOpError, UsageError


def require_count(what: str, noun: str, count: object) -> None:
    """Raises: UsageError where `count` is no number of calls, runs or rounds."""
    if not isinstance(count, Integral) or count < 1:
        raise UsageError(f"{what} takes at least one {noun}, not {count!r}")


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """What an argument has to be, or a result is; a dimension of None may have any size."""

    shape: tuple[int | None, ...]
    dtype: np.dtype

    def accepts(self, array: Any) -> bool:
        return (
            array.dtype == self.dtype
            and len(array.shape) == len(self.shape)
            and all(
                expected in (None, size)
                for expected, size in zip(self.shape, array.shape, strict=True)
            )
        )

    def __str__(self) -> str:
        sizes = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype.name}[{sizes}]"


@dataclass(frozen=True, slots=True)
class FreeSize:
    """A size that whoever wrote a program left free: that of a dimension of an argument. Those of
    one name are equal."""

    argument: int
    axis: int
    name: str
    least: int
    most: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.name} >= {self.least}"
            if self.most is None
            else f"{self.least} <= {self.name} <= {self.most}"
        )


def not_in_range(sizes: Iterable[FreeSize], arrays: Sequence[Any]) -> str:
    """What arrays have against sizes that are free; "" where they have nothing."""
    known: dict[str, int] = {}
    for free in sizes:
        size = arrays[free.argument].shape[free.axis]
        place = f"dimension {free.axis} of argument {free.argument}, {size},"
        if size < free.least or (free.most is not None and size > free.most):
            return f"{place} is to be {free}"
        if known.setdefault(free.name, size) != size:
            return f"{place} is to be {free.name}, which is {known[free.name]} elsewhere"
    return ""


def argument_types(module: ir.Module, entry: str, name: str) -> tuple[ArgumentType, ...]:
    """The types of the arguments of @entry, which its users know as `name`.

    Raises: UnsupportedOpError for an argument that is no kind of array.
    """
    return _types(ir.SymbolTable(module.operation)[entry].type.inputs, name, "argument")


def result_types(module: ir.Module, entry: str, name: str) -> tuple[ArgumentType, ...]:
    """The types of the results of @entry, as those of its arguments."""
    return _types(ir.SymbolTable(module.operation)[entry].type.results, name, "result")


def _types(given_types: Iterable[ir.Type], name: str, what: str) -> tuple[ArgumentType, ...]:
    types = []
    for index, given in enumerate(given_types):
        dtype = (
            _element_types().get(str(given.element_type))
            if isinstance(given, ir.RankedTensorType)
            else None
        )
        if dtype is None:
            raise UnsupportedOpError(
                f"@{name}", f"{what} {index} is {given}, for which there is no kind of array"
            )
        shape = tuple(
            None if given.is_dynamic_dim(axis) else size for axis, size in enumerate(given.shape)
        )
        types.append(ArgumentType(shape, dtype))
    return tuple(types)


@functools.cache
def _element_types() -> dict[str, np.dtype]:
    """MLIR's spelling of an element type -> the type of arrays, for all that JAX has."""
    candidates = [np.dtype(code) for code in np.typecodes["AllInteger"] + "?efdFD"]
    candidates += [
        np.dtype(scalar)
        for scalar in vars(ml_dtypes).values()
        if isinstance(scalar, type) and issubclass(scalar, np.generic)
    ]
    spelled: dict[str, np.dtype] = {}  # i1 is NumPy's bool, which comes before int1
    with mlir.make_ir_context():
        for dtype in candidates:
            try:
                spelled.setdefault(str(mlir.dtype_to_ir_type(dtype)), dtype)
            except TypeError:  # a type that NumPy has and JAX does not
                continue
    return spelled
