"""Exported functions with symbolic sizes: their kernels, which serve any number of rows.

XLA is given the program as it is, with its sizes open.  Who loads it compiles it for the sizes of a
call, as `mlc_jit(any_rows=True)` does; the kernels that it takes then are those that it takes for
the sizes that are tried here, as a rule, and need not be generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_mlc.backends.base import KernelObject
from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.interop import compat_exports
from hlo_mlc.interop.function import resolve_options
from hlo_mlc.interop.jit import mlc_jit
from hlo_mlc.interop.jitted import MlcFunction
from hlo_mlc.kernel_objects import supply
from hlo_mlc.report import Report
from hlo_mlc.support.options import Options

# Rows that are tried: of 1365 there are blocks of 256, 64, 16, 4 and 1 (partition/row_blocks.py),
# of more there are groups of blocks where rows are folded, what is divided by 1024 is multiplied,
# and few rows may be computed in other kernels than many. What has to be a multiple of something
# is tried as so many times as much.
_ROWS = (1365, 87381, 21845, 5461, 1024, 85, 21, 5, 1)
_MULTIPLES = (1, 2, 3, 4, 8, 12, 16, 24, 32, 64, 128)
_OTHER_SIZE = 32  # of what is no number of rows, for whose sizes kernels differ anyway


@dataclass(frozen=True, slots=True)
class OpenKernels:
    """The kernels of a function for any sizes, by their ids; the report is on the largest."""

    ids: tuple[str, ...]
    report: Report


def jitted(function: Callable[..., Any], how: Mapping[str, Any]) -> MlcFunction[..., Any]:
    """The function of a file, compiled for the sizes of each call `how` the file says."""
    return mlc_jit(
        function, any_rows=True, choose=how["choose"], deterministic=how["deterministic"]
    )


def supply_kernel(
    kernel_id: str, how: Mapping[str, Any], kernel: Mapping[str, Any], code: bytes
) -> None:
    """Has a kernel of a file taken where such a function needs it."""
    options = resolve_options(how["choose"], None, how["deterministic"])
    supply(kernel_id, cpu_backend(options), KernelObject.of(kernel["name"], kernel["about"], code))


def is_open(exported: jax.export.Exported) -> bool:
    """Whether it is exported with symbolic sizes."""
    return bool(compat_exports.symbols_of(exported))


def kernels_for_sizes(
    exported: jax.export.Exported, options: Options, vjp_order: int
) -> OpenKernels:
    """The kernels that a function takes for sizes such as it may be called with, compiled; and
    those of its derivatives."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return exported.call(*args, **kwargs)

    call.__name__ = exported.fun_name
    ids: dict[str, None] = {}
    reports = []
    for types in _types(exported):
        args, kwargs = jax.tree.unflatten(exported.in_tree, types)
        for order in range(vjp_order + 1):
            ours = mlc_jit(
                _derivative(call, order),
                any_rows=True,
                choose=options.choose,
                deterministic=options.deterministic,
            )
            reports.append(ours.report(*args, **kwargs))
            ids |= dict.fromkeys(kernel.id for kernel in reports[-1].kernels)
    return OpenKernels(
        tuple(ids),
        reports[0] if reports else Report.untouched("no sizes were found that it is for"),
    )


def _types(exported: jax.export.Exported) -> Iterator[list[jax.ShapeDtypeStruct]]:
    """Types of arguments with sizes that the function is for."""
    symbols = compat_exports.symbols_of(exported)
    for rows in _ROWS:
        for multiple in _MULTIPLES:
            types = compat_exports.with_sizes(
                exported,
                {
                    name: (rows if leads else _OTHER_SIZE) * multiple
                    for name, leads in symbols.items()
                },
            )
            if types is not None:
                yield types
                break


def _derivative(function: Callable[..., Any], order: int) -> Callable[..., Any]:
    """The function, or what reverse mode makes of it, so many times."""
    if not order:
        return function
    inner = _derivative(function, order - 1)

    def pulled_back(*args: Any, **kwargs: Any) -> list[jax.Array]:
        results, pull = jax.vjp(lambda args, kwargs: inner(*args, **kwargs), args, kwargs)
        gradients = jax.tree.leaves(pull(jax.tree.map(_cotangent, results)))
        return [g for g in gradients if g.dtype != jax.dtypes.float0]

    return pulled_back


def _cotangent(result: jax.Array) -> Any:
    if jnp.issubdtype(result.dtype, jnp.inexact):
        return jnp.ones_like(result)
    return np.zeros(result.shape, jax.dtypes.float0)
