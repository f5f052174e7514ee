"""A traced function in f64, with noise where its own arithmetic rounds.

Every equation of the jaxpr is computed with floats as f64.  Where the float type of the original
would round, the result is changed by a random share of its unit in the last place (of the sum of
magnitudes, for sums): the spread of several such runs is the conditioning of each element,
whatever stands between.  What the original represents exactly stays as it is, values that only
move as well.  Beyond the original's range comes infinity.  Stochastic arithmetic.  Source:
D. S. Parker, Monte Carlo Arithmetic, 1997.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from fuzzing import windows
from fuzzing.flow import FLOW
from fuzzing.primitives import RULES, joined_parts, total_order
from fuzzing.widening import converted, is_packed, wide_type, widened

MOVES = frozenset(
    (
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "expand_dims",
        "transpose",
        "concatenate",
        "pad",
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "gather",
        "rev",
        "select_n",
        "copy",
        "copy_p",
        "optimization_barrier",
        "split",
        "scatter",
        "iota",
        "stop_gradient",
        "tile",
        "real",
        "imag",
        "complex",
        "unstack",
    )
)
"""They hand on values as they are, subnormal ones too."""
EXACT = frozenset(
    (
        "max",
        "min",
        "neg",
        "abs",
        "sign",
        "floor",
        "ceil",
        "round",
        "clamp",
        "reduce_max",
        "reduce_min",
        "cummax",
        "cummin",
        "reduce_window_max",
        "reduce_window_min",
        "scatter_max",
        "scatter_min",
        "scatter-max",
        "scatter-min",
        "nextafter",
        "reduce_precision",
        "sort",
        "top_k",
        "bitcast_convert_type",
        "select_and_gather_add",
        "conj",
        "copysign",
    )
)
"""Their results are among what the operands' type represents."""
_OF_PARTS = frozenset(("abs", "sign"))  # which round where numbers are complex
SUMS = frozenset(
    (
        "reduce_sum",
        "cumsum",
        "dot_general",
        "conv_general_dilated",
        "reduce_window_sum",
        "scatter-add",
        "scatter_add",
        "scatter-sub",
        "scatter_sub",
        "select_and_scatter_add",
    )
)
"""Linear in their float operands: their error is that of a sum of magnitudes."""
MULTIPLIED = frozenset(
    ("reduce_prod", "cumprod", "scatter-mul", "scatter_mul", "reduce_window", "reduce")
)
"""They may multiply, in any order."""
LIBRARY = frozenset(
    (
        "cholesky",
        "triangular_solve",
        "lu",
        "qr",
        "eigh",
        "geqrf",
        "householder_product",
        "ormqr",
        "svd",
        "symmetric_product",
        "cholesky_update",
        "tridiagonal_solve",
        "fft",
        "stablehlo.cholesky",
        "stablehlo.triangular_solve",
    )
)
"""Their error is that of operands which differ a little."""
FUSED = frozenset(("mul", "square"))  # with a sum that follows, by XLA as by us
CALLS = frozenset(
    (
        "pjit",
        "jit",
        "closed_call",
        "core_call",
        "remat",
        "remat2",
        "checkpoint",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "eval_jaxpr",
        "composite",
        "shard_map",
    )
)
BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""What is called, by the name that it has with each of them, which JAX's versions change."""
BASIC = frozenset(
    (
        "add",
        "sub",
        "mul",
        "div",
        "add_any",
        "sqrt",
        "integer_pow",
        "square",
        "rem",
        "convert_element_type",
        "reduce_precision",
    )
)
EXACT_OF_COMPLEX = frozenset(
    ("add", "sub", "mul", "add_any", "square", "convert_element_type", *SUMS, *MULTIPLIED)
)
SATURATING = frozenset(("tanh", "erf", "erfc", "logistic", "stablehlo.logistic"))
"""In f64 too, their results for finite operands may be their limits, which are not exact."""
BASIC_UNITS, FUNCTION_UNITS, SUM_UNITS = 1.0, 4.0, 2.0
"""Noise in units in the last place: of what rounds once; of functions, which the project promises
to 4 (docs/accuracy.md); of sums, for each unit of the sum of magnitudes."""
LOST_NOISES = 8.0
"""How many times the largest noise of a library's own may be left of what is zero."""
EITHER_NAN = np.uint64(0x7FF8_0000_0000_5160).view(np.float64)
"""A NaN that was computed: of its sign nothing is known."""


@dataclass(slots=True)
class Wide:
    """Evaluates jaxprs.

    `rng` makes the noise, None makes none; `flushes` says whether subnormal values count as zero,
    `fuses` whether products that are only summed overflow together with their sum;
    `has_whole_sums`: whether all data is small whole numbers, whose sums are exact; `interpret`
    evaluates an equation that NumPy has no rule for.
    """

    rng: np.random.Generator | None
    flushes: bool
    fuses: bool
    has_whole_sums: bool
    interpret: Callable[[core.JaxprEqn, list[np.ndarray]], list[np.ndarray]]

    def evaluate(self, jaxpr: core.Jaxpr, consts: Sequence, args: Sequence) -> list[np.ndarray]:
        """What the jaxpr gives for these constants and arguments, all widened."""
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

        def read(atom: object) -> np.ndarray:
            if isinstance(atom, core.Literal):
                return widened(np.asarray(atom.val, atom.aval.dtype))
            return values[atom]

        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(v) for v in equation.invars])
            if (
                self.fuses
                and equation.primitive.name in FUSED
                and np.isinf(results[0]).any()
                and _feeds_sums_only(jaxpr, equation.outvars[0])
            ):
                # As part of a fused multiply-add, it does not overflow.
                results = self._computed(equation, [read(v) for v in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def closed(self, jaxpr: object, args: Sequence) -> list[np.ndarray]:
        """The same of a jaxpr with its constants, or without any."""
        if hasattr(jaxpr, "consts"):
            return self.evaluate(jaxpr.jaxpr, [widened(np.asarray(c)) for c in jaxpr.consts], args)
        return self.evaluate(jaxpr, (), args)

    def _equation(self, equation: core.JaxprEqn, operands: list[np.ndarray]) -> list[np.ndarray]:
        name = equation.primitive.name
        if name in CALLS:
            return self.closed(_called(equation), operands)
        if name in FLOW:
            return FLOW[name](self.closed, equation.params, operands)
        if name in ("optimization_barrier", "random_wrap", "random_unwrap"):
            return operands  # keys are the numbers in them
        if name == "random_seed":
            return [np.asarray(jax.random.PRNGKey(operands[0]))]
        if name == "random_split":
            key = jax.random.wrap_key_data(jnp.asarray(operands[0]))
            return [
                np.asarray(jax.random.key_data(jax.random.split(key, equation.params["shape"])))
            ]
        if name == "random_bits":
            shape, dtype = equation.outvars[0].aval.shape, equation.outvars[0].aval.dtype
            key = jax.random.wrap_key_data(jnp.asarray(operands[0]))
            return [np.asarray(jax.random.bits(key, shape, dtype))]
        if name in LIBRARY:
            return self._solved(equation, operands)
        if name not in MOVES and self.flushes:
            operands = [
                _flushed(o, v.aval.dtype) for o, v in zip(operands, equation.invars, strict=True)
            ]
        results = self._computed(equation, operands)
        types = [v.aval.dtype for v in equation.outvars]
        if name in MOVES:
            return results
        if name not in EXACT or (name in _OF_PARTS and operands[0].dtype.kind == "c"):
            results = [
                self._rounded(equation, operands, r, t) if jnp.issubdtype(t, jnp.inexact) else r
                for r, t in zip(results, types, strict=True)
            ]
        return results if self.rng is None else [self._any_nan(r) for r in results]

    def _any_nan(self, result: np.ndarray) -> np.ndarray:
        """The result with NaN of either sign, or of both: no standard says which, XLA's own
        functions give this or that for an invalid operation, and `top_k` and bits show it."""
        if result.dtype != np.float64 or not np.isnan(result).any():
            return result
        is_negative = self.rng.random(result.shape) < self.rng.choice((0.0, 0.5, 1.0))
        return np.where(np.isnan(result), np.where(is_negative, -EITHER_NAN, EITHER_NAN), result)

    def _order(self, values: np.ndarray) -> np.ndarray:
        """Places of the elements of a row in the order of `top_k`.  With noise, each NaN that may
        have either sign stands somewhere, and each place has what may then stand there."""
        order = np.argsort(~total_order(values), kind="stable")
        is_either = _may_have_either_sign(values[order])
        if self.rng is None or not is_either.any():
            return order
        others, either = order[~is_either], order[is_either]
        found = self.rng.choice(either, order.size)
        if others.size:
            place = np.arange(order.size)
            one = self.rng.integers(
                np.maximum(0, place - either.size),
                np.minimum(others.size - 1, place),
                endpoint=True,
            )
            found = np.where(self.rng.random(order.size) < 0.5, others[one], found)
        return found

    def _computed(self, equation: core.JaxprEqn, operands: list[np.ndarray]) -> list[np.ndarray]:
        name, target = equation.primitive.name, equation.outvars[0].aval.dtype
        if any(is_packed(o.dtype) for o in operands) and name not in MOVES | {
            "convert_element_type"
        }:
            return self.interpret(equation, operands)  # NumPy has few functions of them
        if name == "split":
            ends = np.cumsum(equation.params["sizes"])[:-1]
            return np.split(operands[0], ends, equation.params["axis"])
        if name == "top_k":
            axis = equation.params["axis"]
            order = np.apply_along_axis(self._order, axis, operands[0])
            order = np.take(order, range(equation.params["k"]), axis)
            return [np.take_along_axis(operands[0], order, axis), order.astype(np.int32)]
        if name == "sort":
            keys = [
                part
                for o in operands[: equation.params["num_keys"]]
                for part in ((o.real, o.imag) if o.dtype.kind == "c" else (o,))
            ]
            order = np.lexsort(keys[::-1], equation.params["dimension"])  # the last one counts most
            return [np.take_along_axis(o, order, equation.params["dimension"]) for o in operands]
        if name == "reduce_window":
            return windows.folded(equation.params, operands, self._combined)
        if name == "convert_element_type":
            return [converted(operands[0], target)]
        if name in _NARROW:
            narrow = [
                o.astype(v.aval.dtype) for o, v in zip(operands, equation.invars, strict=True)
            ]
            return [widened(r) for r in self.interpret(equation, narrow)]
        if name in RULES:
            result = np.asarray(RULES[name](equation.params, *operands))
            return [result.astype(wide_type(target), copy=False)]
        return self.interpret(equation, operands)

    def _combined(self, jaxpr: object, operands: list[np.ndarray]) -> list[np.ndarray]:
        """A fold's combiner, applied to all places at once: nothing is rounded on the way."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        values = dict(zip(inner.invars, operands, strict=True))

        def read(atom: object) -> np.ndarray:
            return (
                widened(np.asarray(atom.val, atom.aval.dtype))
                if isinstance(atom, core.Literal)
                else values[atom]
            )

        for equation in inner.eqns:
            given, name = [read(v) for v in equation.invars], equation.primitive.name
            results = (
                self._combined(_called(equation), given)
                if name in CALLS
                else self._computed(equation, given)
            )
            values.update(zip(equation.outvars, results, strict=True))
        return [read(v) for v in inner.outvars]

    def _solved(self, equation: core.JaxprEqn, operands: list[np.ndarray]) -> list[np.ndarray]:
        """Of matrices or rows that are not quite those that were given: what libraries promise."""
        if self.rng is None:
            return self.interpret(equation, operands)
        given = []
        for operand, variable in zip(operands, equation.invars, strict=True):
            if jnp.issubdtype(variable.aval.dtype, jnp.inexact):
                axes = tuple(range(-min(2, operand.ndim), 0))
                size = np.abs(operand).max(axes, initial=0.0, keepdims=True)
                units = (
                    SUM_UNITS * operand.shape[-1] ** 0.5 * float(jnp.finfo(variable.aval.dtype).eps)
                )
                change = self._shares(operand)
                if operand.dtype.kind == "c":
                    change = change + 1j * self._shares(operand)
                operand = operand + units * size * change
            given.append(operand)
        exact = self.interpret(equation, operands)
        results = [
            self._anything_infinite(self._perhaps_lost(r, e))
            for r, e in zip(self.interpret(equation, given), exact, strict=True)
        ]
        if all(np.isfinite(o).all() for o in given):
            return results
        # Which rows are pivots is chosen by comparing them.
        return [
            r if r.dtype.kind in "fc" else self.rng.integers(0, 1 << 7, r.shape).astype(r.dtype)
            for r in results
        ]

    def _perhaps_lost(self, result: np.ndarray, exact: np.ndarray) -> np.ndarray:
        """The result, or nothing where the noise about it is as large, some of which it was given
        already: others may leave zeros of sums that cancel."""
        if result.dtype.kind == "c":
            sides = ((result.real, exact.real), (result.imag, exact.imag))
            return joined_parts(*(self._perhaps_lost(*side) for side in sides))
        if result.dtype.kind != "f":
            return result
        axes = tuple(range(-min(2, result.ndim), 0))
        noise = np.abs(result - exact).max(axes, initial=0.0, keepdims=True)
        is_lost = np.abs(result) <= LOST_NOISES * noise
        return np.where(is_lost & (self.rng.random(result.shape) < 0.5), 0.0, result)

    def _anything_infinite(self, result: np.ndarray) -> np.ndarray:
        """The result with anything where it is not finite: what arithmetic of complex numbers, and
        libraries, make of infinities no standard says."""
        if result.dtype.kind not in "fc":
            return result
        anything = self.rng.choice((np.nan, np.inf, 0.0), result.shape)
        if result.dtype.kind == "c":
            anything = joined_parts(anything, anything)
        return np.where(np.isfinite(result), result, anything)

    def _rounded(
        self,
        equation: core.JaxprEqn,
        operands: list[np.ndarray],
        result: np.ndarray,
        narrow: np.dtype,
        whole: np.ndarray | None = None,
    ) -> np.ndarray:
        """The result with noise, in the range of its own type; a part of a complex number is as
        uncertain as the whole."""
        if jnp.issubdtype(narrow, jnp.complexfloating):
            result = result if self.rng is None else self._anything_infinite(result)
            part = np.zeros((), narrow).real.dtype
            return joined_parts(
                *(
                    self._rounded(equation, operands, side, part, result)
                    for side in (result.real, result.imag)
                )
            )
        info = jnp.finfo(narrow)
        if self.rng is not None:
            change = self._noise(
                equation, operands, result, narrow, result if whole is None else whole
            )
            rounded_once = result.astype(narrow).astype(np.float64)
            result = np.where(change == 0, result, result + change)  # -0 + 0 is 0
            if equation.primitive.name in SATURATING:
                # It may be its limit exactly, and the difference from that be nothing.
                is_best = self.rng.random(result.shape) < 0.5
                result = np.where(is_best, rounded_once, result)
            if equation.primitive.name in MULTIPLIED and len(equation.outvars) == 1:
                # Whether it becomes zero or infinite on the way, or both, depends on the order.
                ways = (np.nan, 0.0, np.copysign(np.inf, result), result)
                anything = np.choose(self.rng.integers(len(ways), size=result.shape), ways)
                result = np.where(self._leaves_range(equation, operands, info), anything, result)
            if equation.primitive.name in SUMS:
                # Terms beyond the range of f64, of the other sign than another one or an infinity:
                # they need not be rounded alone.
                anything = self.rng.choice((np.nan, np.inf, -np.inf), result.shape)
                made_here = np.isnan(result) & ~np.isnan(
                    self._computed(equation, [_at_most_one(o) for o in operands])[0]
                )
                result = np.where(made_here, anything, result)
        if narrow == np.float64:
            return result
        limit = float(info.max) * (1 + float(info.eps) / 4)
        beyond = np.float64(np.asarray(np.inf).astype(narrow))  # some floats of 8 bits have NaN
        result = np.where(np.abs(result) > limit, np.copysign(beyond, result), result)
        return _flushed(result, narrow) if self.flushes else result

    def _noise(
        self,
        equation: core.JaxprEqn,
        operands: list[np.ndarray],
        result: np.ndarray,
        narrow: np.dtype,
        whole: np.ndarray,
    ) -> np.ndarray:
        name, info = equation.primitive.name, jnp.finfo(narrow)
        units, magnitude = FUNCTION_UNITS, np.abs(whole)
        is_exact = (narrow != np.float64) & np.logical_and.reduce(
            [part.astype(narrow).astype(np.float64) == part for part in (whole.real, whole.imag)]
        )
        if any(o.dtype.kind == "c" for o in operands):
            is_exact &= name in EXACT_OF_COMPLEX  # all others are made of several functions
        if name in SATURATING:
            is_exact &= (operands[0] == 0) | ~np.isfinite(operands[0])
        if name in SUMS:
            units = SUM_UNITS
            sizes = _sizes(operands)
            if name.endswith("sub"):
                sizes[-1] = -sizes[-1]
            magnitude = np.abs(self._computed(equation, sizes)[0])
        elif name in MULTIPLIED and len(equation.outvars) == 1:
            # Each factor rounds: errors add up as those of random signs do.
            units = SUM_UNITS * max(v.aval.size for v in equation.invars) ** 0.5
            # It may add as well.
            magnitude = np.abs(self._computed(equation, _sizes(operands))[0])
        elif name in PRODUCTS:
            units = SUM_UNITS * max(v.aval.size for v in equation.invars) ** 0.5
        elif name in BASIC:
            units = BASIC_UNITS
        is_exact &= (result == 0) | (magnitude > 2 * float(info.tiny))  # others may be flushed
        if name in SUMS or name in PRODUCTS:
            # Whether terms of both signs overflow on the way depends on their order.
            mixed = (
                ~np.isnan(result)
                & (magnitude > float(info.max))
                & (np.isinf(result) | (magnitude > np.abs(result) * (1 + 1e-6)))
            )
            result = np.where(mixed & (self.rng.random(result.shape) < 0.5), np.nan, result)
            is_exact &= (
                self.has_whole_sums
                & (magnitude == np.floor(magnitude))
                & (magnitude < 2.0**info.nmant)
            )
        change = self._shares(result) * magnitude + 0.0 * result
        change *= units * float(info.eps)
        # Of what rounding may as well have left nothing of, a rest of any size may be left, or
        # none: large terms may cancel before small ones are added.
        is_lost = (np.abs(change) >= np.abs(result)) & (self.rng.random(result.shape) < 0.5)
        rest = change * 2.0 ** self.rng.uniform(info.minexp, 0, result.shape)
        rest *= self.rng.random(result.shape) < 0.5
        change = np.where(is_lost, rest - result, change)
        return np.where(np.isinf(result) | is_exact, 0.0, change)

    def _shares(self, result: np.ndarray) -> np.ndarray:
        """Shares of what rounding may change, of either sign; in every other equation equal ones
        for equal results: what is computed twice in the same way is rounded in the same way."""
        shape, where = result.shape, ...
        if self.rng.random() < 0.5:
            different, where = np.unique(result, return_inverse=True)
            shape = different.shape
        shares = self.rng.choice((-1.0, 1.0), shape) * self.rng.uniform(0.5, 1.0, shape)
        return np.asarray(shares)[where].reshape(result.shape)

    def _leaves_range(
        self, equation: core.JaxprEqn, operands: list[np.ndarray], info: np.finfo
    ) -> np.ndarray:
        """Where a product may overflow or underflow on the way, which depends on its order."""

        def product(of: Callable[[np.ndarray, float], np.ndarray]) -> np.ndarray:
            return self._computed(
                equation,
                [
                    of(np.where(o == 0, 1.0, np.abs(o)), 1.0) if o.dtype.kind == "f" else o
                    for o in operands
                ],
            )[0]

        return (product(np.fmax) > float(info.max)) | (product(np.fmin) < float(info.tiny))


_NARROW = frozenset(("nextafter", "reduce_precision", "bitcast_convert_type"))
"""What depends on how many bits the original has."""
PRODUCTS = frozenset(
    (
        "reduce_prod",
        "cumprod",
        "reduce_window",
        "reduce",
        "cumlogsumexp",
        "scatter-mul",
        "scatter_mul",
        "pow",
        "exp",
    )
)


def _called(equation: core.JaxprEqn) -> object:
    return next(equation.params[body] for body in BODIES if body in equation.params)


def moved_results(jaxpr: core.Jaxpr) -> list[bool]:
    """Of each result, whether only the outermost equations' movements lead to it."""
    moved = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if equation.primitive.name in MOVES and all(
            isinstance(v, core.Literal) or v in moved for v in equation.invars
        ):
            moved.update(equation.outvars)
    return [not isinstance(v, core.Literal) and v in moved for v in jaxpr.outvars]


def has_no_order(jaxpr: core.Jaxpr) -> bool:
    """Whether floats are only moved and compared in it, so that nothing depends on an order, or on
    what is rounded together."""
    for equation in jaxpr.eqns:
        inner = [
            p
            for value in equation.params.values()
            for p in (value if isinstance(value, (tuple, list)) else (value,))
            if hasattr(p, "eqns") or hasattr(p, "jaxpr")
        ]
        if inner:
            if not all(has_no_order(getattr(p, "jaxpr", p)) for p in inner):
                return False
        elif equation.primitive.name not in MOVES | EXACT and any(
            jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in equation.outvars
        ):
            return False
    return True


def _feeds_sums_only(jaxpr: core.Jaxpr, value: core.Var) -> bool:
    readers = {e.primitive.name for e in jaxpr.eqns if any(v is value for v in e.invars)}
    return readers <= {"add", "sub", "add_any"} and all(v is not value for v in jaxpr.outvars)


def _at_most_one(value: np.ndarray) -> np.ndarray:
    """Finite numbers made small."""
    if value.dtype.kind == "c":
        return joined_parts(_at_most_one(value.real), _at_most_one(value.imag))
    return (
        np.where(np.isfinite(value), np.clip(value, -1, 1), value)
        if value.dtype.kind == "f"
        else value
    )


def _may_have_either_sign(value: np.ndarray) -> np.ndarray:
    if value.dtype != np.float64:
        return np.zeros(value.shape, bool)
    return np.isnan(value) & (np.abs(value).view(np.int64) == EITHER_NAN.view(np.int64))


def _sizes(operands: list[np.ndarray]) -> list[np.ndarray]:
    """Magnitudes of what is finite, in the operands' own types."""
    return [
        np.where(np.isfinite(o), np.abs(o), 0.0).astype(o.dtype) if o.dtype.kind in "fc" else o
        for o in operands
    ]


def _flushed(value: np.ndarray, narrow: np.dtype) -> np.ndarray:
    if value.dtype != np.float64 or not jnp.issubdtype(narrow, jnp.floating):
        return value
    return np.where(np.abs(value) < float(jnp.finfo(narrow).tiny), np.copysign(0.0, value), value)
