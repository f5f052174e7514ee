"""Errors: one base, readable with context, and whole after crossing a process border."""

from __future__ import annotations

import inspect
import pickle

import pytest

from hlo_mlc.support import errors
from hlo_mlc.support.errors import MlcError, PassError, UnsupportedOpError

CLASSES = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, MlcError)
]


@pytest.mark.parametrize("error", CLASSES)
def test_every_class_is_documented(error):
    assert "__doc__" in vars(error) and error.__doc__.strip()


def test_location_and_context_are_printed():
    error = PassError("What went wrong", location="model.py:3", context="%0 = add\n%1 = mul")
    assert str(error) == "What went wrong\n  at model.py:3\n  | %0 = add\n  | %1 = mul"
    assert str(PassError("Only this")) == "Only this"


def test_unsupported_op():
    error = UnsupportedOpError("stablehlo.fft", "no such kernel", location="model.py:3")
    assert (error.op, error.reason, error.location) == (
        "stablehlo.fft",
        "no such kernel",
        "model.py:3",
    )
    assert str(error) == "stablehlo.fft is not supported: no such kernel\n  at model.py:3"


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedOpError("stablehlo.fft", "no such kernel", location="model.py:3"),
        PassError("What went wrong", context="%0 = add"),
    ],
)
def test_pickling_keeps_all(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
