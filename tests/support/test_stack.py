"""Calls in one piece of Python's stack."""

from __future__ import annotations

import resource

from hlo_mlc.support.stack import on_one_stack

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
