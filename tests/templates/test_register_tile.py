"""The register tile of matrix products."""

from __future__ import annotations

import pytest

from hlo_mlc.target.cpu import named
from hlo_mlc.templates.register_tile import MOST_EVEN_ROWS, MOST_ROWS, register_tile


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 127, 128, 1000])
@pytest.mark.parametrize("columns", [1, 10, 64, 100, 768, 1021])
def test_tiles_fit_into_the_registers(level, rows, columns):
    target = named(level)
    lanes = target.lanes(4)
    height, vectors = register_tile(rows, columns, lanes, target)
    assert 1 <= height <= min(rows, MOST_EVEN_ROWS)
    assert height <= MOST_ROWS or rows % height == 0
    assert 1 <= vectors <= -(-columns // lanes)
    assert height * vectors + vectors + 1 <= target.registers


def test_tiles_that_divide_evenly_are_preferred():
    target = named("x86-64-v4")
    assert register_tile(128, 768, 16, target) == (8, 3)  # sixteen by sixteen of them


@pytest.mark.parametrize("rows", [14, 28, 56])
def test_columns_of_images_are_divided_evenly(rows):
    assert register_tile(rows, 64, 16, named("x86-64-v4")) == (14, 2)


@pytest.mark.parametrize("rows", [128, 512, 3136])
def test_many_rows_need_no_even_tile(rows):
    assert register_tile(rows, 64, 16, named("x86-64-v4"))[0] <= MOST_ROWS


def test_large_products_keep_twenty_sums_in_flight():
    target = named("x86-64-v4")
    height, vectors = register_tile(512, 512, 16, target)
    assert height * vectors >= 20
