"""Other ways to a compiled function than a call of `mlc_jit`'s: as a StableHLO module, which came
from elsewhere as it were, ahead of its calls, through a file, by what takes the place of `jax.jit`.

Printed at the head of programs of these modes: it needs JAX and hlo_mlc alone.
"""

from __future__ import annotations

import string
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import hlo_mlc

Compile = Callable[..., Callable]
"""`compile(function, args, choose=…)`"""


def _at_first_call(kernel: Callable, function: Callable, compile: Compile) -> Callable:
    """The function, compiled in this way where `kernel` is `mlc_jit` with its choice."""
    if getattr(kernel, "func", None) is not hlo_mlc.mlc_jit:
        return kernel(function)
    compiled: list[Callable] = []

    def call(*args: jax.Array) -> object:
        if not compiled:
            compiled.append(compile(function, args, **kernel.keywords))
        return compiled[0](*args)

    return call


def through_module(kernel: Callable, function: Callable) -> Callable:
    """Called for other extents before where they are open, by whose kernels it may run then."""

    def compiled(function: Callable, args: Sequence[jax.Array], choose: str) -> Callable:
        module = exported(function, args)
        found = hlo_mlc.compile_stablehlo(module, choose=choose)
        if is_open(module):
            found(*_of_other_extents(args))
        return found

    return _at_first_call(kernel, function, compiled)


def ahead_of_time(kernel: Callable, function: Callable) -> Callable:
    def compiled(function: Callable, args: Sequence[jax.Array], choose: str) -> Callable:
        types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
        return hlo_mlc.mlc_jit(function, choose=choose).lower(*types).compile()

    return _at_first_call(kernel, function, compiled)


def through_file(kernel: Callable, function: Callable) -> Callable:
    def compiled(function: Callable, args: Sequence[jax.Array], choose: str) -> Callable:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.mlc"
            hlo_mlc.export(hlo_mlc.mlc_jit(function, choose=choose), *args, path=path)
            return hlo_mlc.load(path)

    return _at_first_call(kernel, function, compiled)


def in_place_of_jit(kernel: Callable, function: Callable) -> Callable:
    def compiled(function: Callable, args: Sequence[jax.Array], choose: str) -> Callable:
        with hlo_mlc.enabled(choose=choose):
            return jax.jit(function)

    return _at_first_call(kernel, function, compiled)


# Calls of LAPACK that JAX does not promise to serve for years.
_MAY_CHANGE = [
    export.DisabledSafetyCheck.custom_call(f"lapack_{name}_ffi")
    for name in ("sormqr", "dormqr", "cunmqr", "zunmqr")
]


def exported(function: Callable, args: Sequence[jax.Array]) -> export.Exported:
    """With extents that are open, each with a letter of its own, where JAX can trace that, and the
    program is one of other extents as well."""
    extents = sorted({e for a in args for e in np.shape(a) if e > 1})
    letters = dict(zip(extents, string.ascii_lowercase, strict=False))
    scope = export.SymbolicScope()
    types = [
        jax.ShapeDtypeStruct(
            export.symbolic_shape(", ".join(letters.get(e, str(e)) for e in a.shape), scope=scope),
            a.dtype,
        )
        for a in args
    ]
    traced = export.export(jax.jit(function, keep_unused=True), disabled_checks=_MAY_CHANGE)
    try:
        jax.eval_shape(function, *_of_other_extents(args))
        return traced(*types)
    except Exception:  # whatever JAX says of extents that it cannot compare
        return traced(*args)


def is_open(module: export.Exported) -> bool:
    return any(not isinstance(e, int) for t in module.in_avals for e in t.shape)


def _of_other_extents(args: Sequence[jax.Array]) -> list[jax.Array]:
    return [jnp.ones([e + (e > 1) for e in a.shape], a.dtype) for a in args]
