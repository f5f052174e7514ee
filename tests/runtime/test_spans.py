"""What the runtime records of kernels and their tasks."""

from __future__ import annotations

import threading
import time

import jax
import numpy as np
import pytest

from hlo_mlc.runtime import library, variants
from hlo_mlc.runtime.spans import Lane, recorded_spans
from hlo_mlc.support.errors import UsageError

TASKS = 64


@pytest.fixture
def program(call_kernel, count_kernel, new_id):
    """A program of one kernel with 64 tasks, and the kernel's id."""
    kernel_id = new_id()
    variants.publish(kernel_id, count_kernel(TASKS))
    result = jax.ShapeDtypeStruct((TASKS, 2), np.uint32)  # i64 for JAX without x64
    function = jax.jit(lambda: call_kernel(kernel_id, result))
    np.testing.assert_array_equal(function()[:, 0], np.arange(1, TASKS + 1))
    return function, kernel_id


def spans_of(lanes: list[Lane], kernel_id: str) -> tuple[list, list]:
    """Runs of the kernel, and of its tasks."""
    spans = [span for lane in lanes for span in lane.spans if span.kernel_id == kernel_id]
    return [s for s in spans if s.task is None], [s for s in spans if s.task is not None]


def test_runs_and_tasks(program) -> None:
    function, kernel_id = program
    begin = time.monotonic_ns()
    with recorded_spans() as lanes:
        assert not lanes
        for _ in range(3):
            jax.block_until_ready(function())
    end = time.monotonic_ns()
    runs, tasks = spans_of(lanes, kernel_id)
    assert len(runs) == 3 and sorted(t.task for t in tasks) == sorted([*range(TASKS)] * 3)
    assert not any(lane.lost for lane in lanes)
    assert len({lane.thread for lane in lanes}) == len(lanes)
    assert all(begin <= span.begin_ns <= span.end_ns <= end for span in (*runs, *tasks))
    for task in tasks:  # each within the run that it belongs to, whoever ran it
        assert any(run.begin_ns <= task.begin_ns and task.end_ns <= run.end_ns for run in runs)


def test_nothing_is_recorded_outside(program) -> None:
    function, kernel_id = program
    jax.block_until_ready(function())
    with recorded_spans() as first:
        pass
    with recorded_spans() as second:
        jax.block_until_ready(function())
    jax.block_until_ready(function())
    assert not spans_of(first, kernel_id)[0] and len(spans_of(second, kernel_id)[0]) == 1


def test_what_finds_no_room_is_counted(program) -> None:
    function, _ = program
    with recorded_spans(per_thread=5) as lanes:
        for _ in range(2):
            jax.block_until_ready(function())
    kept = sum(len(lane.spans) for lane in lanes)
    assert kept + sum(lane.lost for lane in lanes) == 2 * (TASKS + 1)
    assert all(len(lane.spans) == 5 for lane in lanes if lane.lost) and kept < 2 * (TASKS + 1)


def test_several_threads_call(program) -> None:
    function, kernel_id = program
    callers, calls = 4, 25
    gate = threading.Barrier(callers)

    def call() -> None:
        gate.wait()
        for _ in range(calls):
            jax.block_until_ready(function())

    threads = [threading.Thread(target=call) for _ in range(callers)]
    with recorded_spans() as lanes:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    runs, tasks = spans_of(lanes, kernel_id)
    assert len(runs) == callers * calls and len(tasks) == callers * calls * TASKS
    for lane in lanes:  # what one thread runs is one inside the other, or one after the other
        spans = sorted(lane.spans, key=lambda span: (span.begin_ns, -span.end_ns))
        open_until: list[int] = []
        for span in spans:
            while open_until and open_until[-1] <= span.begin_ns:
                open_until.pop()
            assert not open_until or span.end_ns <= open_until[-1]
            open_until.append(span.end_ns)


def test_one_at_a_time(program) -> None:
    function, kernel_id = program
    with recorded_spans() as lanes:
        with pytest.raises(UsageError, match="one at a time"), recorded_spans():
            pass
        jax.block_until_ready(function())
    assert len(spans_of(lanes, kernel_id)[0]) == 1


def test_it_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError), recorded_spans():
        raise ZeroDivisionError
    with recorded_spans():
        pass


def test_who_ends_a_trace_twice_ends_no_other_one() -> None:
    native = library.load()
    first = native.mlc_trace_begin(8)
    native.mlc_trace_end(first)
    second = native.mlc_trace_begin(8)
    native.mlc_trace_end(first)
    assert native.mlc_trace_begin(8) is None
    for trace in (first, second):
        native.mlc_trace_end(trace)
        assert native.mlc_trace_kernel(trace, 0) is None
        native.mlc_trace_release(trace)
