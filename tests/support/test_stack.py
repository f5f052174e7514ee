"""Calls in one piece of Python's stack."""

from __future__ import annotations

import resource
import sys
import threading

import pytest

from hlo_mlc.support.stack import deep_calls, on_one_stack

DEPTH, CALLS = 150, 50


def faults_of(run) -> int:
    """The pages that were new to this process while `run` ran."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def leaf() -> None:
    """Something whose frame is larger than that of `call_at_every_depth`."""


leaf.__code__ = leaf.__code__.replace(co_stacksize=400)


def call_at_every_depth(depth: int = DEPTH) -> None:
    for _ in range(CALLS):
        leaf()
    if depth:
        call_at_every_depth(depth - 1)


def test_no_call_takes_memory_from_the_system() -> None:
    """In a piece that ends somewhere, each of the calls there would touch a new page."""
    call = on_one_stack(call_at_every_depth)
    call()
    assert faults_of(call) < CALLS


def test_what_is_called_is_the_function() -> None:
    @on_one_stack
    def joined(*args: int, by: str) -> str:
        """Some text."""
        return by.join(map(str, args))

    assert joined(1, 2, by="-") == "1-2"
    assert (joined.__name__, joined.__doc__) == ("joined", "Some text.")


def depth_of(calls: int) -> int:
    return 1 + depth_of(calls - 1) if calls else 0


def test_calls_may_go_deeper() -> None:
    usual = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        depth_of(usual)
    with deep_calls(), deep_calls():
        assert depth_of(usual + 500) == usual + 500
        with pytest.raises(RecursionError):
            depth_of(sys.getrecursionlimit())
    assert sys.getrecursionlimit() == usual


def test_the_limit_that_somebody_else_has_set_stays() -> None:
    usual = sys.getrecursionlimit()
    try:
        with deep_calls():
            sys.setrecursionlimit(9_000)
        assert sys.getrecursionlimit() == 9_000
    finally:
        sys.setrecursionlimit(usual)


def test_small_stacks_get_no_more_than_they_hold() -> None:
    limits: list[int] = []

    def note() -> None:
        with deep_calls():
            limits.append(sys.getrecursionlimit())

    usual = sys.getrecursionlimit()
    threading.stack_size(1 << 20)
    try:
        thread = threading.Thread(target=note)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(0)
    assert limits == [max(usual, 1024)]
