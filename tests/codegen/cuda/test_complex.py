"""Complex numbers in kernels for GPUs: on the emulator, and as machine code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from emulation.compiler import why_not
from hlo_mlc.codegen.cuda import compile as nvrtc
from hlo_mlc.codegen.cuda.printer import print_program
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.frontend.emit import KERNEL_OP
from hlo_mlc.loops.prove import prove
from hlo_mlc.target import cuda
from hlo_mlc.templates.cuda.program import schedule_program
from hlo_mlc.tensor.access import Pair
from making.quotients import quotient

COMPLEX = ("complex64", "complex128")
WIDER = {"complex64": np.complex128, "complex128": np.clongdouble}
ORDERS = (0, 7)  # of the threads: upwards, shuffled
# Units in the last place of the largest result: of sums of up to 300 terms, of a few functions.
ULPS = 64


def scanned(x):
    return lax.scan(lambda s, r: (s * r + 1, s.imag), x[0] / 4, x / 4)


def evolved(x):
    """A loop that is one kernel."""
    return lax.fori_loop(0, 5, lambda i, s: s - 0.1j * (jnp.roll(s, 1) - s.conj()), x)


def of_parts(x):
    """Complex, real and logical results side by side."""
    return x * x, abs(x), x.real > x.imag, lax.complex(x.imag, x.real)


# name -> (function, shapes)
CASES = {
    "map of whole vectors": (lambda x, y: x * y + 2j - x / 3, [(64,), (64,)]),
    "map with a rest": (lambda x, y: (x + y) * x.conj(), [(7, 13), (7, 13)]),
    "map of one": (lambda x: x * 2j - 1, [()]),
    "map with a row": (lambda x, b: x * b, [(5, 12), (12,)]),
    "map with a column": (lambda x, b: x - b[:, None], [(7, 13), (7,)]),
    "quotient": (lambda x, y: x / y, [(37,), (37,)]),
    "chain": (lambda x: jnp.exp(jnp.sin(x) * 1j) + jnp.sqrt(x), [(101,)]),
    "mixed results": (of_parts, [(9, 11)]),
    "from real numbers": (lambda x: jnp.exp(1j * x.real), [(45,)]),
    "chosen": (lambda x, y: jnp.where(abs(x) > 1, x, y * 1j), [(33,), (33,)]),
    "sums of rows": (lambda x: (x.sum(1), x.mean(1)), [(9, 70)]),
    "sums of columns": (lambda x: x.sum(0), [(130, 18)]),
    "sum of all": (lambda x: x.sum(), [(30, 33)]),
    "products of rows": (lambda x: jnp.prod(x / abs(x), 1), [(5, 60)]),
    "products of columns": (lambda x: jnp.prod(x / abs(x), 0), [(60, 5)]),
    "rows by their length": (
        lambda x: x / jnp.sqrt((abs(x) ** 2).sum(1, keepdims=True)),
        [(6, 90)],
    ),
    "matrix product": (lambda x, y: x @ y, [(17, 20), (20, 12)]),
    "product with a conjugate": (lambda x: x @ x.conj().T, [(18, 10)]),
    "products of a batch": (
        lambda x, y: jnp.einsum("bij,bjk->bik", x, y) * 2j,
        [(2, 9, 12), (2, 12, 7)],
    ),
    "matrix by vector": (lambda x, y: x @ y, [(18, 40), (40,)]),
    "conjugate transpose": (lambda x: x.conj().T, [(33, 47)]),
    "transpose of inner axes": (lambda x, y: x.transpose(0, 2, 1) + y, [(2, 40, 36), (2, 36, 40)]),
    "moved": (
        lambda x: (x.T.reshape(-1)[3:-4:2], jnp.roll(x, 2, 1), jnp.pad(x, 1)[::-1]),
        [(7, 13)],
    ),
    "joined": (lambda x, y: jnp.concatenate([x, y * 2j, x[:2]]), [(5, 6), (3, 6)]),
    "repeated": (lambda x: jnp.broadcast_to(x[:, None], (9, 4, 3)) * 1j, [(9, 3)]),
    "looked up": (lambda x: x[jnp.array([3, 0, 6, 3])] * x[:4], [(7, 13)]),
    "updated": (lambda x: x.at[2:5, 1].multiply(2j).at[jnp.array([0, 3])].add(1j), [(7, 5)]),
    "cumulative sums": (lambda x: jnp.cumsum(x, 1), [(5, 70)]),
    "cumulative products": (lambda x: jnp.cumprod(x / abs(x), 1), [(5, 70)]),
    "scan": (scanned, [(9, 12)]),
    "loop": (evolved, [(40,)]),
}
FUNCTIONS = {
    "abs": abs,
    "angle": np.angle,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "arctan": np.arctan,
    "sign": np.sign,
    "square": np.square,
    "conj": np.conj,
}


def wide(dtype: str) -> AbstractContextManager:
    return jax.enable_x64(dtype == "complex128")


def differing(ours: np.ndarray, right: np.ndarray) -> str:
    """What is wrong with a result; empty if nothing is."""
    eps = float(jnp.finfo(ours.dtype).eps) if ours.dtype.kind in "fc" else 0.0
    scale = np.max(np.abs(right), initial=0) if eps else 0
    error = (
        np.max(np.abs(ours.astype(right.dtype) - right), initial=0)
        if eps
        else float(np.any(ours != right))
    )
    return "" if error <= ULPS * eps * scale else f"{float(error)} of {float(scale)}"


@pytest.fixture(scope="module")
def prepared(take_apart, arrays, emulator, cuda_source):
    """The kernels of all cases, compiled together."""
    made = {}
    for dtype in COMPLEX:
        with wide(dtype):
            for number, (name, (function, shapes)) in enumerate(CASES.items()):
                args = arrays(dtype, *shapes, seed=number)
                made[dtype, name] = take_apart(function, *args, platform="cuda"), args
            for name in FUNCTIONS:
                args = arrays(dtype, (29,), seed=len(made))
                function = getattr(jnp, name)
                made[dtype, name] = take_apart(function, *args, platform="cuda"), args
    emulator.prepare(
        [cuda_source(p) for parts, _ in made.values() for p in parts.programs], run_once=True
    )
    return made


@pytest.fixture(scope="module")
def on_emulator(prepared, emulator, cuda_source) -> Callable:
    """`on_emulator(dtype, name, order)`: the results of a case, all of which kernels compute."""

    def run(dtype: str, name: str, order: int) -> list[np.ndarray]:
        parts, args = prepared[dtype, name]
        assert {node.op for node in parts.graph.nodes} - {"stablehlo.constant"} == {KERNEL_OP}

        def execute(program, operands):
            return emulator.run(
                cuda_source(program), program, operands, order, "end" if order else "start"
            )

        return parts.run(args, execute)

    return run


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", CASES)
def test_like_jax_in_twice_the_digits(prepared, on_emulator, dtype: str, name: str) -> None:
    function, _ = CASES[name]
    _, args = prepared[dtype, name]
    with jax.enable_x64(True):
        exact = jax.tree.leaves(jax.jit(function)(*[a.astype(np.complex128) for a in args]))
    with wide(dtype):
        kinds = jax.tree.leaves(jax.eval_shape(function, *args))
        for order in ORDERS:
            for ours, right, kind in zip(
                on_emulator(dtype, name, order), exact, kinds, strict=True
            ):
                assert (ours.dtype, ours.shape) == (kind.dtype, kind.shape)
                assert not differing(ours, np.asarray(right))


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_like_numpy_in_more_digits(prepared, on_emulator, dtype: str, name: str) -> None:
    _, (x,) = prepared[dtype, name]
    (ours,) = on_emulator(dtype, name, 0)
    assert not differing(ours, FUNCTIONS[name](x.astype(WIDER[dtype])))


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_machine_code_keeps_all_in_registers(prepared, architecture: str) -> None:
    target = cuda.named(architecture)
    spilled = {}
    for (dtype, name), (parts, _) in prepared.items():
        for program in parts.programs:
            loops, _ = schedule_program(program, target)
            prove(loops)
            compiled = nvrtc.compile_source(print_program(loops, target), target)
            if compiled.spilled_bytes:
                spilled[dtype, name] = compiled.spilled_bytes
    assert not spilled


@pytest.mark.parametrize(("dtype", "width"), [("complex64", 4), ("complex128", 2)])
@pytest.mark.parametrize("name", ["map of whole vectors", "quotient", "chain"])
def test_both_parts_are_one_access(
    prepared, cuda_source, dtype: str, width: int, name: str
) -> None:
    """Sixteen bytes for neighbours, one number behind the last vector."""
    parts, _ = prepared[dtype, name]
    (program,) = parts.programs
    text = cuda_source(program).text
    assert f"mlc_load<{width}>(a0 + " in text
    assert f"mlc_store<{width}>(r0 + " in text
    assert "a0[" not in text
    assert "r0[" not in text


def test_transposed_numbers_go_through_a_tile_for_each_part(prepared, cuda_source) -> None:
    parts, _ = prepared["complex64", "conjugate transpose"]
    (program,) = parts.programs
    text = cuda_source(program).text
    assert text.count("__shared__") == 2
    assert "mlc_load<2>(a0 + " in text
    assert "mlc_store<2>(r0 + " in text


SPECIAL = np.array([0, -0.0, 1, -2.5, np.inf, -np.inf, np.nan, 1e18, 1e-15], np.float32)
OPERATIONS = {
    "add": (lambda x, y: x + y),
    "multiply": (lambda x, y: x * y),
    "divide": (lambda x, y: x / y),
    "abs": (lambda x, y: abs(x)),
    "eq": (lambda x, y: x == y),
    "ne": (lambda x, y: x != y),
}


def test_zeros_and_infinities(take_apart, emulator, cuda_source) -> None:
    """As in NumPy: a number where that has one, NaN and infinities in the same parts; quotients as
    in C."""
    re, im = np.meshgrid(SPECIAL, SPECIAL)
    whole = np.empty(re.size, np.complex64)
    whole.real, whole.imag = re.ravel(), im.ravel()
    x, y = (a.ravel() for a in np.meshgrid(whole, whole))
    parts = {name: take_apart(f, x, y, platform="cuda") for name, f in OPERATIONS.items()}
    emulator.prepare([cuda_source(p) for each in parts.values() for p in each.programs])
    for name, function in OPERATIONS.items():
        (ours,) = parts[name].run(
            [x, y], lambda program, operands: emulator.run(cuda_source(program), program, operands)
        )
        with np.errstate(all="ignore"):
            expected = quotient(x, y) if name == "divide" else function(x, y)
        assert ours.dtype == expected.dtype
        for part in (np.real, np.imag):
            one, other = part(ours), part(expected)
            np.testing.assert_array_equal(np.isnan(one), np.isnan(other), name)
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-36, err_msg=name)


def test_functions_at_zeros_and_infinities(take_apart, emulator, cuda_source) -> None:
    """C11, annex G, as NumPy has it; NaN where one part is open."""
    re, im = np.meshgrid([0, -0.0, 1, np.inf, -np.inf], [0, -0.0, 1, -1])
    x = np.empty(re.size, np.complex64)
    x.real, x.imag = re.ravel(), im.ravel()
    for name in ("exp", "log", "sqrt", "tanh", "abs"):
        parts = take_apart(getattr(jnp, name), x, platform="cuda")
        (ours,) = parts.run(
            [x], lambda program, operands: emulator.run(cuda_source(program), program, operands)
        )
        with np.errstate(all="ignore"):
            expected = FUNCTIONS[name](x)
        for part in (np.real, np.imag):
            one, other = part(ours), part(expected)
            np.testing.assert_array_equal(np.signbit(one), np.signbit(other), name)
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=0, err_msg=name)


@pytest.mark.parametrize(
    ("shape", "indices", "element"),
    [((5, 2), "01", 1), ((2,), "0", 0), ((5, 3), "01", None), ((2, 5), "01", None)],
)
def test_pairs(shape: tuple[int, ...], indices: str, element: int | None) -> None:
    buffer = Buffer("x", F32, shape)
    places = tuple(index.constant(int(i)) for i in indices)
    pair = Pair.of(buffer, places)
    assert (pair is None) == (element is None)
    if pair is not None:
        assert (pair.point, Pair.element(places)) == (places[:-1], element)
