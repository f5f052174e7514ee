"""What a function must give: its jaxpr in f64 with noise, by NumPy.

Equations that NumPy has no rule for go through the interpreter of StableHLO one by one, large ones
through XLA.  Neither needs a compilation of the whole, nor has anything in common with what is
judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from fuzzing.wide import LIBRARY, Wide, has_no_order, moved_results
from fuzzing.widening import is_packed, wide_type, widened

PLAIN_XLA = "--xla_cpu_experimental_ynn_fusion_type="
"""Without it XLA's reductions lose NaN (JAX 0.10 to 0.12)."""
INTERPRETED_ELEMENTS = 60_000
"""Up to so many elements of intermediate values the interpreter is faster than a compilation."""
_PASSES = "builtin.module(inline,func.func(chlo-legalize-to-stablehlo),canonicalize,symbol-dce)"


@dataclass(frozen=True, slots=True)
class Reference:
    """Results of runs in f64: `exact` without noise, `samples` with."""

    exact: list[np.ndarray]
    samples: list[list[np.ndarray]]
    moves: list[bool]  # of each result, whether its values are only moved


class Oracle:
    """Runs a function in f64 as often as asked."""

    def __init__(
        self, function: Callable, args: Sequence[np.ndarray], x64: bool, has_whole_sums: bool
    ) -> None:
        with jax.enable_x64(x64), _on_host():
            self._jaxpr = jax.make_jaxpr(lambda *a: jax.tree.leaves(function(*a)))(*args)
        self.types = [np.dtype(v.aval.dtype) for v in self._jaxpr.jaxpr.outvars]
        self.has_no_order = has_no_order(self._jaxpr.jaxpr)
        self._moves = moved_results(self._jaxpr.jaxpr)
        self._args = [widened(a) for a in args]
        self._has_whole_sums = has_whole_sums
        self._interpreted: dict[core.JaxprEqn, Callable] = {}

    @np.errstate(all="ignore")
    def run(self, count: int, seed: int) -> Reference:
        """Results without noise and `count` times with it; half of those flush subnormals, the
        others fuse products with sums."""
        rng = np.random.default_rng(seed)
        with _on_host():
            return Reference(
                self._once(None, False),
                [self._once(rng, k % 2 == 0) for k in range(count)],
                self._moves,
            )

    @np.errstate(all="ignore")
    def hang_on_flushing(self) -> list[np.ndarray]:
        """Which elements of each result are others where subnormal numbers count as zeros."""
        with _on_host():
            pairs = zip(self._once(None, False), self._once(None, True), strict=True)
        return [(one != other) & ~(np.isnan(one) & np.isnan(other)) for one, other in pairs]

    def _once(self, rng: np.random.Generator | None, flushes: bool) -> list[np.ndarray]:
        fuses = rng is not None and not flushes
        runner = Wide(rng, flushes, fuses, self._has_whole_sums, self._interpret)
        return runner.closed(self._jaxpr, self._args)

    def _interpret(self, equation: core.JaxprEqn, operands: list[np.ndarray]) -> list[np.ndarray]:
        if equation not in self._interpreted:
            self._interpreted[equation] = _alone(equation, operands)
        return self._interpreted[equation](operands)


def _on_host() -> AbstractContextManager[object]:
    """Where a reference runs, whatever runs what is judged."""
    return jax.default_device(jax.local_devices(backend="cpu")[0])


def _alone(
    equation: core.JaxprEqn, operands: list[np.ndarray]
) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """What evaluates one equation for operands of these types."""
    types = [o.dtype for o in operands]

    def bind(*carried: jax.Array) -> list[jax.Array]:
        given = [_original(c, t) for c, t in zip(carried, types, strict=True)]
        return [_carried(r) for r in bound(equation, given)]

    with jax.enable_x64(True):
        shapes = [jax.ShapeDtypeStruct(o.shape, signed(o.dtype)) for o in operands]
        made = jax.eval_shape(
            lambda *a: bound(equation, a),
            *(jax.ShapeDtypeStruct(o.shape, o.dtype) for o in operands),
        )
        traced = jax.jit(bind, keep_unused=True).trace(*shapes)
        run = _interpreter(traced) if _is_interpreted(equation, types) else _compiled(traced)

    def evaluate(values: list[np.ndarray]) -> list[np.ndarray]:
        results = run(*(_viewed(v, signed(v.dtype)) for v in values))
        return [
            _viewed(np.asarray(r).astype(signed(m.dtype)), m.dtype).reshape(m.shape)
            for r, m in zip(results, made, strict=True)
        ]

    return evaluate


_COMPILED = frozenset(
    (
        "rng_bit_generator",
        "igamma",
        "igammac",
        "igamma_grad_a",
        "random_gamma_grad",
        "regularized_incomplete_beta",
        "approx_top_k",
    )
)
"""Calls that the interpreter does not have, loops of thousands of trips."""


def _is_interpreted(equation: core.JaxprEqn, types: Sequence[np.dtype]) -> bool:
    """Whether the interpreter knows the operation and these types, and is fast enough."""
    name = equation.primitive.name
    # Of a window that sticks out it writes what is inside; XLA drops the whole.
    sticks_out = name[:7] == "scatter" and equation.params["dimension_numbers"].update_window_dims
    return (
        work(equation) <= INTERPRETED_ELEMENTS
        and name not in LIBRARY | _COMPILED
        and not sticks_out
        and all(t.kind != "c" for t in types)
    )


def _viewed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The bits as another type of their width, in order; of packed integers the values."""
    if is_packed(array.dtype) or is_packed(dtype):
        return array.astype(dtype, "C")
    return np.ascontiguousarray(array).view(dtype).reshape(array.shape)


def _original(value: jax.Array, dtype: np.dtype) -> jax.Array:
    if value.dtype == dtype:
        return value
    if is_packed(dtype):
        return value.astype(dtype)
    return value != 0 if dtype.kind == "b" else lax.bitcast_convert_type(value, dtype)


def _carried(value: jax.Array) -> jax.Array:
    carrier = signed(value.dtype)
    if value.dtype == carrier:
        return value
    if value.dtype == bool or is_packed(value.dtype):
        return value.astype(carrier)
    return lax.bitcast_convert_type(value, carrier)


def _interpreter(traced: jax.stages.Traced) -> Callable[..., list[np.ndarray]]:
    lowered = traced.lower().compiler_ir()
    with lowered.context as context:
        stablehlo.register_interpreter_dialect(context)
        stablehlo.register_stablehlo_passes()
        module = ir.Module.parse(lowered.operation.get_asm(binary=True))
        passmanager.PassManager.parse(_PASSES).run(module.operation)

    def run(*args: np.ndarray) -> list[np.ndarray]:
        with lowered.context:
            values = [ir.DenseElementsAttr.get(a) for a in args]
            return [np.asarray(r) for r in stablehlo.eval_module(module, values)]

    return run


def _compiled(traced: jax.stages.Traced) -> Callable[..., list[np.ndarray]]:
    compiled = traced.lower().compile()

    def run(*args: np.ndarray) -> list[np.ndarray]:
        with jax.enable_x64(True):
            return [np.asarray(r) for r in compiled(*args)]

    return run


def bound(equation: core.JaxprEqn, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """An equation's results for operands that may be wider than those it was traced with."""
    primitive, params = equation.primitive, dict(equation.params)
    name = primitive.name
    if name == "gather" or name.startswith("scatter"):
        # The interpreter takes large unsigned numbers for negative ones, where they are indices.
        array, places, *rest = operands
        operands = [array, places.astype(jnp.int64), *rest]
    if name == "reduce":
        return _folded(params, operands)
    if name[:7] == "scatter" and name[8:] in _SCATTERS:
        return [
            _SCATTERS[name[8:]](
                *operands,
                params["dimension_numbers"],
                unique_indices=params["unique_indices"],
                indices_are_sorted=params["indices_are_sorted"],
                mode=params["mode"],
            )
        ]
    if name == "scatter" and getattr(params["update_jaxpr"], "eqns", ()):
        return [_applied(params, operands)]
    if params.get("preferred_element_type") is not None:
        params["preferred_element_type"] = wide_type(params["preferred_element_type"])
    results = primitive.bind(*operands, **params)
    return list(results) if primitive.multiple_results else [results]


_SCATTERS = {
    "add": lax.scatter_add,
    "sub": lax.scatter_sub,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
    "mul": lax.scatter_mul,
}


def _folded(params: dict, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """A fold with a combiner of its own, evaluated again in the wider types."""
    half = len(operands) // 2
    jaxpr = params["jaxpr"]

    def fold(one: object, other: object) -> object:
        results = _again(getattr(jaxpr, "jaxpr", jaxpr), jax.tree.leaves((one, other)))
        return tuple(results) if half > 1 else results[0]

    arrays, starts = tuple(operands[:half]), tuple(operands[half:])
    if half == 1:
        arrays, starts = arrays[0], starts[0]
    return jax.tree.leaves(lax.reduce(arrays, starts, fold, params["dimensions"]))


def _applied(params: dict, operands: Sequence[jax.Array]) -> jax.Array:
    """A scatter that applies a function to what it finds, evaluated again in the wider types."""
    array, places, updates = operands
    return lax.scatter_apply(
        array,
        places,
        lambda x: _again(params["update_jaxpr"], [x, x])[0],
        params["dimension_numbers"],
        update_shape=updates.shape,
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
        mode=params["mode"],
    )


def _again(jaxpr: core.Jaxpr, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """The equations of a combiner, for values of the wider types."""
    values = dict(zip(jaxpr.invars, operands, strict=True))

    def read(atom: object) -> jax.Array:
        return (
            jnp.asarray(atom.val, wide_type(atom.aval.dtype))
            if isinstance(atom, core.Literal)
            else values[atom]
        )

    for equation in jaxpr.eqns:
        made = bound(equation, [read(v) for v in equation.invars])
        values.update(zip(equation.outvars, made, strict=True))
    return [read(v) for v in jaxpr.outvars]


def signed(dtype: np.dtype) -> np.dtype:
    """What carries such values to the interpreter and back: it takes no bools, unsigned numbers
    or short floats.  Complex ones are compiled."""
    dtype = np.dtype(dtype)
    return (
        dtype
        if dtype.kind in "ic" or dtype in (np.float32, np.float64)
        else np.dtype(f"int{8 * dtype.itemsize}")
    )


def work(equation: core.JaxprEqn) -> int:
    """How many elements the interpreter looks at, about."""
    params = equation.params
    size = sum(v.aval.size for v in (*equation.invars, *equation.outvars))
    if equation.primitive.name == "conv_general_dilated":
        weights = equation.invars[1].aval
        features = weights.shape[params["dimension_numbers"].rhs_spec[0]]
        return 2 * size * weights.size // max(1, features)
    if "window_dimensions" in params:
        return 2 * size * math.prod(params["window_dimensions"])
    if equation.primitive.name.startswith("cum"):
        return size * equation.outvars[0].aval.shape[params["axis"]]
    return 3 * size
