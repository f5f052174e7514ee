"""Programs in pieces, and constants that are operands."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.tensor.canonical import canonical, stages
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tensor.given_constants import with_constants_given
from hlo_mlc.tensor.row_pieces import RowPiece, is_in_pieces, row_pieces
from hlo_mlc.tensor.sharding import factors
from hlo_mlc.tensor.text import program_text
from hlo_mlc.tensor.verify import verify

X = np.ones((150, 30), np.float32)


@pytest.fixture
def program_of(take_apart):
    def program_of(function, *args):
        (kernel,) = take_apart(function, *args).kernels.values()
        return kernel.program

    return program_of


def check(program: TensorProgram) -> None:
    verify(canonical("piece", program.steps, program.operands, program.results))


def pieces_of(program, groups: int = 1) -> list[RowPiece] | None:
    assert is_in_pieces(program)
    (rows,) = (f for f in factors(program, may_wait=True) if f.extent == 150)
    found = row_pieces(program, rows, lambda piece, folds: groups)
    for piece in found or ():
        check(piece.program)
    return found


def centred(x):
    return x - x.mean(0)


def test_what_is_read_after_a_fold_is_another_piece(program_of) -> None:
    folding, whole, reading = pieces_of(program_of(centred, X))
    (fold,) = folding.folds
    assert folding.program.operands[-1] == fold.before
    assert folding.program.results == (fold.after,)
    assert (folding.has_rows, whole.has_rows, reading.has_rows) == (True, False, True)
    assert whole.program.operands == (fold.after,)
    assert whole.program.results[0] in reading.program.operands


def test_folds_of_groups_are_folded_in_a_piece_of_their_own(program_of) -> None:
    folding, joined, whole, _ = pieces_of(program_of(centred, X), groups=4)
    (fold,) = folding.folds
    assert fold.of_groups.shape == (4, 30)
    assert fold.after.shape == fold.before.shape == (30,)
    assert joined.program.operands == (fold.of_groups,) and not joined.has_rows
    assert whole.program.operands == joined.program.results
    alone, joined = pieces_of(program_of(lambda x: jnp.max(x * 2, 0), X), groups=16)
    assert joined.program.results == program_of(lambda x: jnp.max(x * 2, 0), X).results
    assert not joined.has_rows and alone.has_rows


def test_what_is_filled_and_then_changed_is_one_piece(program_of) -> None:
    def function(x, places):
        return jnp.zeros((150, 9)).at[jnp.arange(150), places].add(x.sum(1)).sum(0)

    program = program_of(function, X, np.zeros(150, np.int32))
    writers = [b for step in program.steps for s in stages(step) for b in s.outputs]
    assert len(writers) > len(set(writers))
    assert [piece.has_rows for piece in pieces_of(program)] == [True]


def test_what_reads_folds_and_changes_what_was_there_before_is_not_cut(program_of) -> None:
    def function(x, places):
        return jnp.sin(x).at[jnp.arange(150), places].add(x.sum())

    assert pieces_of(program_of(function, X, np.zeros(150, np.int32))) is None


def test_constants_are_given_where_they_may_be_of_the_rows(program_of) -> None:
    def function(x):
        return jnp.where(x > 7, x / 150 * 0.5 + 1, 150)

    program, tables = with_constants_given(program_of(function, X))
    check(program)
    (table,) = tables.values()
    assert set(table) <= {np.float32(150), np.float32(150 / 0.5), np.float32(0.5 / 150)}
    text = program_text(program)
    assert "150" not in text.replace("150x", "").replace("<150", "")
    assert "7.0" in text  # is compared with


def test_constants_that_every_program_has_stay(program_of) -> None:
    program = program_of(lambda x: jnp.where(x > 7, x * 0.5, jnp.inf) + 1, X)
    assert with_constants_given(program) == (program, {})
