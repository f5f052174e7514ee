"""Templates that are schedules: what they leave out to check holds, and their loops are proved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.core import Allocate, LoopProgram, Prefetch, walk
from hlo_mlc.loops.text import program_text
from hlo_mlc.schedule.core import replay
from hlo_mlc.target import cuda as gpus
from hlo_mlc.target.cpu import CpuTarget, named
from hlo_mlc.templates.base import Scheduled, Template
from hlo_mlc.templates.columns import ColumnsTemplate
from hlo_mlc.templates.contraction import ContractionTemplate
from hlo_mlc.templates.cuda.program import schedule_program as schedule_for_gpu
from hlo_mlc.templates.dot import DotTemplate
from hlo_mlc.templates.reduction import ReductionTemplate
from hlo_mlc.templates.side_by_side import SideBySideTemplate
from hlo_mlc.templates.side_by_side_steps import SideBySideStepsTemplate
from hlo_mlc.templates.stepwise import StepwiseTemplate
from hlo_mlc.templates.tiled import DerivedTemplate, TiledTemplate
from hlo_mlc.templates.transpose import TransposeTemplate
from hlo_mlc.templates.unrolled import UnrolledTemplate
from hlo_mlc.templates.window import WindowTemplate
from hlo_mlc.tensor.canonical import canonical, written
from hlo_mlc.tensor.core import Nest, TensorProgram
from making.verified import unproven

EXTENTS = (1, 2, 3, 8, 15, 17, 33, 47, 100, 257)
DEEP = (257, 300, 511)  # enough for the widest vectors
TEMPLATE = ColumnsTemplate()


def _after(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


# Of x: [n, m], y: [n, m] and z: [k, n, m].
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, y, z: x.sum(0) * 2 + x[0],
    "extreme": lambda x, y, z: x.max(0),
    "places": lambda x, y, z: jnp.argmax(x, 0),
    "product": lambda x, y, z: y[:, 0] @ x,
    "shifted": lambda x, y, z: (x[1:] * x[:-1]).sum(0),
    "padded": lambda x, y, z: jnp.pad(x, ((1, 2), (0, 0))).sum(0),
    "middle": lambda x, y, z: z.sum(1),
    "two axes": lambda x, y, z: z.transpose(1, 0, 2)[:, ::-1].min((0, 1)),
    "batch": lambda x, y, z: jnp.einsum("...k,...kn->...n", z[..., 0], z),
    "maps": lambda x, y, z: lax.reduce(
        (x, y), (jnp.ones((), x.dtype), jnp.zeros((), x.dtype)), _after, (0,)
    ),
}


# Of x: [2, m, k] and w: [2, n, k].
PRODUCTS: dict[str, Callable[..., Any]] = {
    "rows": lambda x, w: x[0] @ w[0].T,
    "transposed": lambda x, w: w[0] @ x[1].T,
    "epilogue": lambda x, w: jnp.maximum(x[0] @ w[0].T + w[1, :, 0], 0) * x[0, :, :1],
    "batch": lambda x, w: jnp.einsum("bik,bjk->bij", x, w),
    "two axes": lambda x, w: jnp.einsum("aik,ajk->ij", x, w),
}


@pytest.fixture(params=FUNCTIONS)
def nests(request, take_apart, arrays) -> list[Nest]:
    """Reductions over leading axes, small and large."""
    rng = np.random.default_rng([*request.param.encode()])
    found = []
    for scale in (1, 1, 40):
        k, n, m = (int(e) for e in rng.choice(EXTENTS, 3))
        n, m = n * scale + 1, m * (scale // 6 + 1) + 4
        args = arrays(str(rng.choice(["float32", "int32", "uint8"])), (n, m), (n, m), (k % 9, n, m))
        parts = take_apart(FUNCTIONS[request.param], *args)
        found += [step for p in parts.programs for step in p.steps if isinstance(step, Nest)]
    return found


def _program(nest: Nest, scheduled: Scheduled) -> LoopProgram:
    inputs = dict.fromkeys(b for s in nest.stages for b in s.inputs)
    outputs = dict.fromkeys(b for s in nest.stages for b in s.outputs)
    ends = np.cumsum([-(-b.bytes // 64) * 64 for b in scheduled.scratch], dtype=int).tolist()
    return LoopProgram(
        "nest",
        tuple(b for b in inputs if b not in outputs),
        tuple(b for b in outputs if b not in nest.private),
        scheduled.body,
        tuple(zip(scheduled.scratch, [0, *ends], strict=False)),
    )


def _assert_legal(
    template: Template, nest: Nest, target: CpuTarget, rng: np.random.Generator
) -> None:
    """Every rewrite is legal by itself, and nothing is left to guards, whatever the parameters."""
    drawn = [
        {name: int(rng.choice(values)) for name, values in template.space(nest, target).items()}
        for _ in range(2)
    ]
    for parameters in (template.default(nest, target), *drawn):
        scheduled = template.apply(nest, target, parameters)
        for schedule in scheduled.schedules:
            again = replay(schedule.naive or schedule.program, schedule.trace)
            assert program_text(again.program) == program_text(schedule.program)
        assert unproven(_program(nest, scheduled)) == ()


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v4"])
def test_columns(nests, level) -> None:
    rng, taken = np.random.default_rng(0), 0
    for nest in nests:
        for l2_bytes in (1 << 20, 1 << 10):
            target = replace(named(level), l2_bytes=l2_bytes)
            if not TEMPLATE.refusal(nest, target):
                _assert_legal(TEMPLATE, nest, target, rng)
                taken += 1
    assert taken >= 2


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_along_the_depth(take_apart, arrays, name) -> None:
    rng, taken = np.random.default_rng([*name.encode()]), 0
    for few, many in ((2, 3), (7, 70), (12, 129), (9, 517)):
        depth = int(rng.choice(DEEP))
        x, w = arrays("float32", (2, few, depth), (2, many, depth))
        for nest in (s for p in take_apart(PRODUCTS[name], x, w).programs for s in p.steps):
            target = named(str(rng.choice(["x86-64-v2", "x86-64-v4"])))
            if isinstance(nest, Nest) and not DotTemplate().refusal(nest, target):
                _assert_legal(DotTemplate(), nest, target, rng)
                taken += 1
    assert taken >= 4


@pytest.mark.parametrize("name", [*PRODUCTS, "columns", "computed", "in place"])
def test_products_in_tiles(take_apart, arrays, name) -> None:
    """With and without packing, in blocks of rows and of the depth, whatever the factors are."""
    function = {
        **PRODUCTS,
        "columns": lambda x, w: x[0].T @ (x[1] + 1),
        "computed": lambda x, w: jnp.tanh((x[0] * 2 - 1) @ (w[0] / 3).T),
        "in place": lambda x, w: lax.fori_loop(
            0, 3, lambda _, y: y + x[0] @ w[0].T, jnp.ones((x.shape[1], w.shape[1]))
        ),
    }[name]
    rng, taken = np.random.default_rng([*name.encode()]), 0
    for m, n, k in (
        (13, 70, 33),
        (47, 131, 300),
        (1, 17, 1100),
        (300, 5, 20),
        (64, 600, 511),
        (19, 40, 12),
    ):
        x, w = arrays("float32", (2, m, k), (2, n, k))
        for nest in _nests(take_apart(function, x, w).programs):
            target = replace(named(str(rng.choice(["x86-64-v2", "x86-64-v4"]))), l2_bytes=1 << 14)
            if not ContractionTemplate().refusal(nest, target):
                _assert_legal(ContractionTemplate(), nest, target, rng)
                taken += 1
    assert taken >= 5


def _nests(steps: Iterable[Any]) -> list[Nest]:
    """The nests in some steps, what they read and write given and taken."""
    found: list[Nest] = []
    for step in steps:
        if isinstance(step, Nest):
            outputs = tuple(b for b in written((step,)) if b not in step.private)
            inputs = dict.fromkeys(
                b for s in step.stages for b in s.inputs if b not in (*step.private, *outputs)
            )
            found += canonical("nest", (step,), tuple(inputs), outputs).steps
        else:
            found += _nests(step.steps if isinstance(step, TensorProgram) else step.inner)
    return found


# Of x: [m, n] and y: [n, m].
TRANSPOSES: dict[str, Callable[..., Any]] = {
    "plain": lambda x, y: x.T,
    "both": lambda x, y: (x.T * 2 + y, jnp.exp(x.T)),
    "apart": lambda x, y: x[:, ::3].T * 2 + y[: -(-x.shape[1] // 3)],
    "two places": lambda x, y: x[::2, ::2].T + x[: -(-x.shape[0] // 2), ::2].T,
    "batch": lambda x, y: jnp.stack([x, x + 1]).transpose(0, 2, 1) * y,
    "padded": lambda x, y: jnp.pad(x.T, ((1, 2), (3, 0))),
}


@pytest.mark.parametrize("name", TRANSPOSES)
def test_transposes(take_apart, arrays, name) -> None:
    """At the edges of squares and panels, in memory of their own and in that of what they read."""
    rng, taken = np.random.default_rng([*name.encode()]), 0
    for m, n in ((13, 70), (64, 48), (5, 18), (130, 67), (65, 129), (1030, 1025)):
        x, y = arrays(str(rng.choice(["float32", "uint8"])), (m, n), (n, m))
        target = named(str(rng.choice(["x86-64-v2", "x86-64-v3", "x86-64-v4"])))
        for nest in _nests(take_apart(TRANSPOSES[name], x, y).programs):
            if TransposeTemplate().refusal(nest, target):
                continue
            (stage,) = nest.stages
            in_place = replace(stage, overwrites=stage.inputs[-1:])
            for one in (nest, replace(nest, stages=(in_place,))):
                _assert_legal(TransposeTemplate(), one, target, rng)
                taken += 1
    assert taken >= 8


def test_results_apart_from_the_folds_of_their_rows(take_apart, arrays) -> None:
    rng = np.random.default_rng(0)
    for rows, terms in ((16, 24), (70, 31), (1000, 17)):
        (x,) = arrays("float32", (rows, terms))
        (nest,) = (
            s for p in take_apart(lambda x: jnp.tanh(x.sum(1)) + 1, x).programs for s in p.steps
        )
        for level in ("x86-64-v2", "x86-64-v4"):
            body = (
                ReductionTemplate()
                .apply(nest, named(level), ReductionTemplate().default(nest, named(level)))
                .body
            )
            assert any(isinstance(s, Allocate) and s.buffer.scope == "stack" for s in walk(body))
            _assert_legal(ReductionTemplate(), nest, named(level), rng)


# Of x: [n, k], rows with a lane each, and y: [n].
ROWS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, y: jax.nn.softmax(x),
    "norms": lambda x, y: (x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + y[:, None]),
    "places": lambda x, y: jnp.argmax(x * y[:, None], 1),
    "turned": lambda x, y: (jnp.exp(x).T - jnp.sin(x.sum(1)) * y).sum(0),
    "state": lambda x, y: jnp.stack([x[:, 1], jnp.tanh(x.sum(1) + y), jnp.cos(x[:, 0])], 1),
    "apart": lambda x, y: jnp.log(jnp.exp(x - x.max(1, keepdims=True)).sum(1)) + y,
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_side_by_side(take_apart, arrays, name) -> None:
    rng, taken = np.random.default_rng([*name.encode()]), 0
    for rows, terms in ((16, 9), (70, 12), (1000, 15), (33, 4), (5000, 8), (17, 16)):
        x, y = arrays("float32", (rows, terms), (rows,))
        for nest in (s for p in take_apart(ROWS[name], x, y).programs for s in p.steps):
            for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
                if not SideBySideTemplate().refusal(nest, named(level)):
                    _assert_legal(SideBySideTemplate(), nest, named(level), rng)
                    taken += 1
    assert taken >= 4


@pytest.mark.parametrize("length", [66, 75, 96, 256])
def test_steps_side_by_side(take_apart, arrays, length) -> None:
    rng, taken = np.random.default_rng(length), 0
    for rows, level in ((1, "x86-64-v2"), (3, "x86-64-v3"), (5, "x86-64-v4"), (400, "x86-64-v4")):
        (x,) = arrays("float32", (rows, length))
        for function in (
            jnp.fft.rfft,
            lambda x: jnp.fft.ifft(lax.complex(x, x * 2)),
            lambda x: jnp.fft.irfft(lax.complex(x, x * 2)),
        ):
            for nest in _nests(take_apart(function, x).programs):
                if not SideBySideStepsTemplate().refusal(nest, named(level)):
                    _assert_legal(SideBySideStepsTemplate(), nest, named(level), rng)
                    taken += 1
    assert taken >= 6  # of many half empty vectors, rows have the lanes


# Of a: [n, k, k], small matrices with a lane each.
MATRICES: dict[str, Callable[..., Any]] = {
    "lu": lambda a: lax.linalg.lu(a)[:2],
    "qr": lambda a: jnp.linalg.qr(a),
    "triangular": lambda a: jax.scipy.linalg.solve_triangular(a, a[:, ::-1] * 2, lower=True),
    "inverse": lambda a: jnp.linalg.inv(a[:, :3, :3]),
    "transform": lambda a: jnp.fft.fft(a[:, 0]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_small_matrices_in_lanes(take_apart, arrays, name) -> None:
    """Of batches of fewer than there are lanes, of whole vectors, and with some left over."""
    rng, taken = np.random.default_rng(0), 0
    for count, size in ((2, 9), (5, 6), (16, 5), (37, 8), (400, 6)):
        (a,) = arrays("float32", (count, size, size))
        for nest in _nests(take_apart(MATRICES[name], a).programs):
            for level in ("x86-64-v2", "x86-64-v4"):
                for template in (StepwiseTemplate(), UnrolledTemplate()):
                    if not template.refusal(nest, named(level)):
                        _assert_legal(template, nest, named(level), rng)
                        taken += 1
    assert taken >= 8


# Of x: [m, k], y: [n, k] and z: [k, n].
PAIRS: dict[str, Callable[..., Any]] = {
    "distances": lambda x, y, z: jnp.abs(x[:, None] - y).sum(-1),
    "itself": lambda x, y, z: jnp.tanh(((x[:, None] - x) ** 2).max(-1)),
    "places": lambda x, y, z: jnp.argmin(x[:, None] - y[None], -1),
    "turned": lambda x, y, z: jnp.maximum(x[:, :, None], z).sum(1).T,
    "two axes": lambda x, y, z: jnp.minimum(
        x[:, None, :, None], (z.T - 1)[:, :, None] * y[0, :3]
    ).sum((-1, -2)),
    "batch": lambda x, y, z: jnp.abs(jnp.stack([x, x + 1])[:, :, None] - y).sum(-1),
    "twice": lambda x, y, z: jnp.abs(x[:, None] - y).max(-1) + y[:, 0],
    "columns": lambda x, y, z: jnp.minimum(x[:, :, None], z).sum(1),
    "padded": lambda x, y, z: jnp.abs(jnp.pad(x, ((1, 1), (2, 0)))[:, None, : x.shape[1]] - y).max(
        -1
    ),
    "rows": lambda x, y, z: jnp.stack([x, x * 2]).sum(-1),
    "maps": lambda x, y, z: (
        x[:, :, None] * z,
        jnp.exp(x)[:, None] - y,
        x[1:, 1:] + x[:-1, 1:] * x[1:, :-1],
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(take_apart, arrays, name) -> None:
    """In tiles of any size, and by all rules: which axes are rows and columns, what is packed, and
    whether vectors go along the depth."""
    rng, taken = np.random.default_rng([*name.encode()]), 0
    for m, n, k in ((13, 70, 33), (47, 131, 17), (8, 17, 110), (30, 5, 20), (1, 40, 50)):
        x, y, z = arrays(str(rng.choice(["float32", "uint8"])), (m, k), (n, k), (k, n))
        target = named(str(rng.choice(["x86-64-v2", "x86-64-v3", "x86-64-v4"])))
        for nest in _nests(take_apart(PAIRS[name], x, y, z).programs):
            for template in (TiledTemplate(), DerivedTemplate()):
                if not template.refusal(nest, target):
                    _assert_legal(template, nest, target, rng)
                    taken += 1
    assert taken >= 3


# Of x: [1, h, w, c], images, and y: [3, 3, c].
WINDOWS: dict[str, Callable[..., Any]] = {
    "depthwise": lambda x, y: _depthwise(x, y[:, :, None]),
    "computed": lambda x, y: jax.nn.gelu(_depthwise(x, y[:, :, None]) + y[0, 0]),
    "gradients": lambda x, y: jax.vjp(_depthwise, x, y[:, :, None])[1](x + 1),
    "filters": lambda x, y: _convolved(x, jnp.tile(y[..., None], 37)),
    "filters' gradients": lambda x, y: jax.vjp(_convolved, x, jnp.tile(y[..., None], 9))[1](
        jnp.tile(x[..., :1], 9)
    ),
    "extremes": lambda x, y: lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 1, 1), "SAME"
    ),
    "one axis": lambda x, y: lax.reduce_window(
        jnp.tile(x[0, 0, :, 0], 8), 0.0, lax.add, (4,), (1,), "SAME"
    ),
}


def _depthwise(x: jax.Array, k: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        k,
        (1, 1),
        "SAME",
        feature_group_count=k.shape[-1],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _convolved(x: jax.Array, k: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(take_apart, arrays, name) -> None:
    """Lanes that are channels, results of a row, or terms; the last ones, and rare edges."""
    rng, taken = np.random.default_rng([*name.encode()]), 0
    for shape in ((5, 7, 1), (9, 46, 3), (3, 20, 33), (8, 8, 16), (2, 4, 95)):
        x, y = arrays("float32", (1, *shape), (3, 3, shape[-1]))
        target = named(str(rng.choice(["x86-64-v2", "x86-64-v3", "x86-64-v4"])))
        for nest in _nests(take_apart(WINDOWS[name], x, y).programs):
            if not WindowTemplate().refusal(nest, target):
                _assert_legal(WindowTemplate(), nest, target, rng)
                taken += 1
    assert taken >= 3


def test_rows_with_little_to_do_lie_along_vectors(take_apart, arrays) -> None:
    """To load and store rows costs more with a lane for each."""
    target = named("x86-64-v4")
    for function, refused in (
        (lambda x: x / x.sum(1, keepdims=True), True),
        (lambda x: jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True), False),
    ):
        (x,) = arrays("float32", (1000, 12))
        (nest,) = (s for p in take_apart(function, x).programs for s in p.steps)
        assert ("little to do" in SideBySideTemplate().refusal(nest, target)) == refused


def test_columns_fetch_ahead_what_lies_in_rows(take_apart, arrays) -> None:
    """Of a matrix, and neither of the vector that it is multiplied with nor of its own columns."""
    x, y = arrays("float32", (301, 64), (301,))
    given = {"vectors": 4, "chunks": 1, "ahead": 8, "rows": 1}
    for function in (lambda x, y: y @ x, lambda x, y: (x * x[:, 5:6]).sum(0) + y[:64]):
        (nest,) = (step for p in take_apart(function, x, y).programs for step in p.steps)
        body = TEMPLATE.apply(nest, named("x86-64-v3"), given).body
        asked = [s for s in walk(body) if isinstance(s, Prefetch)]
        assert {(s.buffer.shape, s.ahead) for s in asked} == {((301, 64), 8 * 64)}
        assert len(asked) == 1


# Of x: [n, m] and y: [n, m]: templates for GPUs by which they are computed.
FOR_GPUS: dict[str, tuple[str, Callable[..., Any]]] = {
    "map": ("elementwise", lambda x, y: jnp.exp(x) * y),
    "flat": ("elementwise", lambda x, y: x.reshape(-1)[1:] + y[0, 0]),
    "apart": ("elementwise", lambda x, y: x[:, ::2] * y[:, :1]),
    "one": ("elementwise", lambda x, y: x[0, 0] + y[-1, -1]),
    "columns": ("columns", lambda x, y: (x * y).sum(0)),
    "places in columns": ("columns", lambda x, y: jnp.argmax(x, 0)),
    "columns of batches": ("columns", lambda x, y: jnp.stack([x, y]).max(1)),
    "narrow columns": (
        "columns",
        lambda x, y: (
            x.reshape(-1, 3)[:, :2].sum(0) if x.size % 3 == 0 else jnp.repeat(x[:, :1], 2, 1).sum(0)
        ),
    ),
    "products": ("contraction", lambda x, y: jnp.tanh(x @ y.T)),
    "products of halves": (
        "contraction",
        lambda x, y: x.astype(jnp.bfloat16).T @ y.astype(jnp.bfloat16),
    ),
    "long products": ("contraction", lambda x, y: jnp.tile(x, (1, 99)) @ jnp.tile(y, (1, 99)).T),
    "sums of rows": ("rows", lambda x, y: (x * y).sum(1)),
    "places in rows": ("rows", lambda x, y: jnp.argmax(x, 1)),
    "sum of all": ("rows", lambda x, y: jnp.tile(x, (9, 9)).sum()),
    "softmax": ("rows", lambda x, y: jax.nn.softmax(x)),
    "norm": (
        "rows",
        lambda x, y: (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5),
    ),
    "norm of batches": (
        "rows",
        lambda x, y: (
            jnp.stack([x, y]) / jnp.sqrt((jnp.stack([x, y]) ** 2).sum((0, 2), keepdims=True))
        ),
    ),
    "norm and its root": (
        "rows",
        lambda x, y: (x / jnp.sqrt((x * x).sum(1, keepdims=True)), jnp.sqrt((x * x).sum(1))),
    ),
    "counts": ("scatter", lambda x, y: jnp.zeros(9).at[jnp.abs(x).astype(jnp.int32) % 9].add(y)),
    "windows": ("window", lambda x, y: lax.reduce_window(x, 0.0, lax.add, (3, 3), (1, 1), "SAME")),
    "windows apart": (
        "window",
        lambda x, y: lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (2, 1), "VALID"),
    ),
    "channels": (
        "window",
        lambda x, y: lax.reduce_window(
            jnp.stack([x] * 8, -1), 0.0, lax.add, (3, 3, 1), (1, 1, 1), "SAME"
        ),
    ),
    "transposed": ("transpose", lambda x, y: x.T * 2),
    "several transposed": ("transpose", lambda x, y: x.T * x[::-1].T + y[:, :1].T - y.T),
    "transposed or not": ("transpose", lambda x, y: x[:, :7].T[:, :7] + x[:7, :7]),
}


@pytest.mark.parametrize("name", FOR_GPUS)
def test_for_gpus(take_apart, arrays, name) -> None:
    """What comes before blocks and threads is legal step by step."""
    wanted, function = FOR_GPUS[name]
    taken = 0
    for n, m in ((1, 3), (7, 33), (64, 128), (48, 1000)):
        for program in take_apart(function, *arrays("float32", (n, m), (n, m))).programs:
            _, decisions = schedule_for_gpu(program, gpus.named("sm_90"))
            for schedule in (
                s for d in decisions if d.template.name == wanted for s in d.schedules
            ):
                steps = [step for step in schedule.trace if step.name != "bind"]
                before = [p for step, p in schedule.history() if step.name != "bind"][-1]
                again = replay(schedule.naive, steps)
                assert program_text(again.program) == program_text(before)
                taken += 1
    assert taken >= 2
