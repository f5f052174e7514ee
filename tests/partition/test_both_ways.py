"""Matrices that are folded along rows and along columns are read once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.partition.fuse import both_ways
from hlo_mlc.tensor.core import Loop, Nest

SHAPES = [(64, 80), (61, 37), (4, 1000), (7, 1), (50, 3), (33, 129)]
FOLDS = {
    "normal": lambda a, x, r: (a @ x) @ a,
    "bicg": lambda a, x, r: (r @ a, a @ x),
    "both": lambda a, x, r: (a @ x, jnp.sin(a @ x) @ a),
    "squares": jax.grad(lambda a, x, r: jnp.sum((a @ x - r) ** 2), argnums=1),
    "extrema": lambda a, x, r: (jnp.max(a, 1), jnp.min(a * r[:, None], 0)),
    "sums": lambda a, x, r: (jnp.sum(a * a, 1), 3 + 2 * jnp.sum(a, 0)),
    "logistic": lambda a, x, r: (jax.nn.sigmoid(a @ x) - r) @ a / r.size,
}


@pytest.fixture(autouse=True)
def _small_counts_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(both_ways, "_FROM_MEMORY", 1)
    monkeypatch.setattr(both_ways, "_LEAST", 1)


def _arguments(shape: tuple[int, int], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(shape)
    rows, columns = shape
    return [
        rng.integers(-4, 5, n).astype(dtype)
        if np.dtype(dtype).kind == "i"
        else rng.standard_normal(n).astype(dtype)
        for n in ((rows, columns), (columns,), (rows,))
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fold", FOLDS)
def test_results_are_those_of_two_passes(
    check, fold: str, shape: tuple[int, int], dtype: str
) -> None:
    check(FOLDS[fold], *_arguments(shape, dtype), ulps=64)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(64, 80), (61, 37), (33, 129), (160, 9)], ids=str)
@pytest.mark.parametrize("fold", FOLDS)
def test_chunks_of_blocks(
    check, monkeypatch: pytest.MonkeyPatch, fold: str, shape: tuple[int, int], parts: int
) -> None:
    """Whatever number of blocks a chunk has, and the last one."""
    monkeypatch.setattr(both_ways, "_PARTS_BYTES", parts * shape[1] * 4)
    check(FOLDS[fold], *_arguments(shape, "float32"), ulps=64)


@pytest.mark.parametrize("fold", FOLDS)
def test_many_blocks_take_no_more_memory_than_a_chunk(
    take_apart, monkeypatch: pytest.MonkeyPatch, fold: str
) -> None:
    monkeypatch.setattr(both_ways, "_PARTS_BYTES", 4096)
    rows, columns = 37 * 16, 64
    (program,) = take_apart(FOLDS[fold], *_arguments((rows, columns), "float32")).programs
    chunks = [step for step in program.steps if isinstance(step, Loop)]
    assert [loop.trip_count for loop in chunks] == [2]
    between = [b for b in program.temporaries if b.shape[1:] == (columns,)]
    assert sum(b.bytes for b in between) <= 4096 + 3 * columns * 4


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize(("blocks", "chunks"), [(32, 2), (33, 3), (48, 3), (45, 3)])
def test_chunks_are_alike_where_they_can_be(
    take_apart, monkeypatch: pytest.MonkeyPatch, fold: str, blocks: int, chunks: int
) -> None:
    """The blocks are written once then, in a loop."""
    monkeypatch.setattr(both_ways, "_PARTS_BYTES", 4096)
    arguments = _arguments((blocks * 16, 64), "float32")
    (program,) = take_apart(FOLDS[fold], *arguments).programs
    loop, total = program.steps
    assert isinstance(loop, Loop) and loop.trip_count == chunks
    assert isinstance(total, Nest)


@pytest.mark.parametrize("fold", ["bicg", "extrema", "sums"])
def test_integers(check, fold: str) -> None:
    check(FOLDS[fold], *_arguments((61, 37), "int32"))


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("shape", [(64, 80), (61, 37)], ids=str)
def test_one_nest_reads_the_matrix(take_apart, fold: str, shape: tuple[int, int]) -> None:
    """But for its last rows, which have a nest of their own."""
    a, *rest = _arguments(shape, "float32")
    (program,) = take_apart(FOLDS[fold], a, *rest).programs
    (matrix,) = (b for b in program.operands if b.shape == shape)
    reading = [
        step
        for step in program.steps
        if isinstance(step, Nest) and any(matrix in s.inputs for s in step.stages)
    ]
    assert len(reading) == (1 if shape[0] % 16 == 0 else 2)
    assert all(len(nest.stages) == 2 and nest.shared == 1 for nest in reading)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, x, r: a @ (r @ a),
        lambda a, x, r: jax.nn.softmax(a @ x) @ a,
        lambda a, x, r: jnp.cumsum(a @ x) @ a,
        lambda a, x, r: (a @ x)[::-1] @ a,
    ],
    ids=["columns_first", "softmax", "cumsum", "reversed"],
)
def test_rows_that_wait_for_all_of_the_others_are_read_again(take_apart, check, function) -> None:
    arguments = _arguments((64, 80), "float32")
    check(function, *arguments, ulps=256)
    for program in take_apart(function, *arguments).programs:
        for step in program.steps:
            assert (
                not isinstance(step, Nest)
                or len(step.stages) == 1
                or not any(b.shape == (64, 80) for s in step.stages for b in s.inputs)
            )


def test_small_matrices_are_not_cut(take_apart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for program in take_apart(FOLDS["normal"], *_arguments((64, 80), "float32")).programs:
        assert all(len(step.stages) == 1 for step in program.steps)


@pytest.mark.parametrize(
    "fold, shape, dtype, once",
    [
        ("normal", (256, 200), "float32", True),
        ("normal", (200, 256), "float64", True),
        ("sums", (256, 256), "float32", True),
        ("extrema", (256, 256), "float32", False),  # that takes longer than to read them
        ("logistic", (256, 256), "float32", False),
        ("normal", (256, 256), "bfloat16", False),
        ("normal", (1000, 32), "float32", False),  # short rows
        ("normal", (32, 4000), "float32", False),  # long ones
    ],
)
def test_simple_sums_of_what_stays_in_caches(
    take_apart, monkeypatch: pytest.MonkeyPatch, fold: str, shape, dtype: str, once: bool
) -> None:
    monkeypatch.undo()
    with jax.enable_x64(dtype == "float64"):
        programs = take_apart(FOLDS[fold], *_arguments(shape, dtype)).programs
    cut = [len(step.stages) == 2 for program in programs for step in program.steps]
    assert any(cut) == once
