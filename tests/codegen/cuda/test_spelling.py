"""Parentheses where C++ needs them, and nowhere else."""

from __future__ import annotations

import pytest

from hlo_mlc.codegen.clike.spelling import Binding, binding, cast, choice, infix


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", Binding.ATOM),
        ("f(x + y, 3)", Binding.ATOM),
        ("a[i * 4 + 1]", Binding.ATOM),
        ("v0.at[i]", Binding.ATOM),
        ("g<unsigned char, float>(x)", Binding.ATOM),
        ("-x", Binding.UNARY),
        ("(int)f(x)", Binding.UNARY),
        ("-1.5f", Binding.UNARY),
        ("x * y", Binding.PRODUCT),
        ("x * y + z", Binding.SUM),
        ("f(x) - 1", Binding.SUM),
        ("x < y", Binding.LOOSE),
        ("x > y", Binding.LOOSE),
        ("a[i] < b[j] ? x : y", Binding.LOOSE),
        ("x >> 3", Binding.LOOSE),
    ],
)
def test_binding(text: str, expected: Binding) -> None:
    assert binding(text) is expected


@pytest.mark.parametrize(
    ("left", "operator", "right", "expected"),
    [
        ("x + y", "+", "z", "x + y + z"),
        ("x", "-", "y + z", "x - (y + z)"),
        ("x", "-", "y * z", "x - y * z"),
        ("x + y", "*", "z", "(x + y) * z"),
        ("x / y", "/", "z", "x / y / z"),
        ("x", "/", "y * z", "x / (y * z)"),
        ("x", "*", "-y", "x * -y"),
        ("x + 1", "<", "y", "x + 1 < y"),
        ("x < y", "&", "z", "(x < y) & z"),
        ("x & y", "|", "z", "(x & y) | z"),
    ],
)
def test_infix(left: str, operator: str, right: str, expected: str) -> None:
    assert infix(left, operator, right) == expected


def test_casts_and_choices() -> None:
    assert cast("int", "x + y") == "(int)(x + y)"
    assert cast("int", "f(x)") == "(int)f(x)"
    assert choice("x < y", "a + b", "c ? d : e") == "(x < y) ? a + b : (c ? d : e)"
