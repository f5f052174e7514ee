"""Kernels on the runtime's own threads, and paired timing."""

from __future__ import annotations

import os
import threading

import ml_dtypes
import numpy as np
import pytest

from hlo_mlc.runtime.measure import (
    BUFFER_ALIGNMENT,
    PairedTimes,
    Timing,
    aligned_empty,
    bind_kernel,
    made_up,
    time_paired,
)
from hlo_mlc.runtime.variants import KernelCode, load_object
from hlo_mlc.support.errors import CodegenError, RuntimeLibraryError, UsageError


@pytest.mark.parametrize("threads", [1, 2, 7, 40])
@pytest.mark.parametrize("tasks", [0, 1, 5, 1000])
def test_parallel_for_runs_each_task_once(count_kernel, threads, tasks):
    result = np.empty(tasks, np.int64)
    run = bind_kernel(count_kernel(tasks), [], [result], threads=threads)
    for _ in range(20):
        result[...] = -1
        run()
        np.testing.assert_array_equal(result, np.arange(1, tasks + 1))


NESTED_IR = """
%Outer = type { ptr, ptr, i64 }
define internal void @inner(ptr %cell, i64 %task) {
  %old = atomicrmw add ptr %cell, i64 %task monotonic
  ret void
}
define internal void @outer(ptr %closure, i64 %task) {
  %ctx = load ptr, ptr %closure
  %result_at = getelementptr %Outer, ptr %closure, i32 0, i32 1
  %result = load ptr, ptr %result_at
  %count_at = getelementptr %Outer, ptr %closure, i32 0, i32 2
  %count = load i64, ptr %count_at
  %cell = getelementptr i64, ptr %result, i64 %task
  call void @parallel_for(ptr %ctx, ptr @inner, ptr %cell, i64 %count)
  ret void
}
define void @kernel(ptr %ctx, ptr %buffers, ptr %scratch) {
  %result = call ptr @buffer(ptr %buffers, i64 0)
  %closure = alloca %Outer
  store ptr %ctx, ptr %closure
  %result_at = getelementptr %Outer, ptr %closure, i32 0, i32 1
  store ptr %result, ptr %result_at
  %count_at = getelementptr %Outer, ptr %closure, i32 0, i32 2
  store i64 30, ptr %count_at
  call void @parallel_for(ptr %ctx, ptr @outer, ptr %closure, i64 30)
  ret void
}
"""
"""Task i of 30 adds 0 to 29 to element i, in tasks of its own."""


@pytest.mark.parametrize("threads", [1, 4])
def test_nested_parallel_for(compile_kernel, threads):
    code = compile_kernel(NESTED_IR)
    for _ in range(20):
        result = np.zeros(30, np.int64)
        bind_kernel(code, [], [result], threads=threads)()
        np.testing.assert_array_equal(result, np.full(30, sum(range(30))))


HALVE_IN_TASKS_IR = """
%Buffers = type { ptr, ptr }
define internal void @body(ptr %buffers, i64 %task) {
  %operand = call ptr @buffer(ptr %buffers, i64 0)
  %result = call ptr @buffer(ptr %buffers, i64 1)
  %from = getelementptr float, ptr %operand, i64 %task
  %to = getelementptr float, ptr %result, i64 %task
  %value = load float, ptr %from
  %half = fmul float %value, 0.5
  store float %half, ptr %to
  ret void
}
define void @kernel(ptr %ctx, ptr %buffers, ptr %scratch) {
  call void @parallel_for(ptr %ctx, ptr @body, ptr %buffers, i64 2000)
  ret void
}
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_subnormals_are_flushed_on_every_thread_and_only_in_kernels(compile_kernel, threads):
    code = compile_kernel(HALVE_IN_TASKS_IR)
    smallest = np.finfo(np.float32).smallest_normal
    operand = np.full(2000, smallest)
    operand[::2] = 1.0
    result = np.empty_like(operand)
    for _ in range(10):
        bind_kernel(code, [operand], [result], threads=threads)()
        np.testing.assert_array_equal(result, np.where(operand == 1.0, 0.5, 0.0))
        assert smallest * np.float32(0.5) > 0  # the caller's own mode is back


def test_concurrent_callers_share_the_threads(count_kernel):
    wrong = []

    def run() -> None:
        result = np.empty(64, np.int64)
        call = bind_kernel(count_kernel(64), [], [result], threads=3)
        for _ in range(50):
            call()
            if not np.array_equal(result, np.arange(1, 65)):
                wrong.append(result.copy())

    callers = [threading.Thread(target=run) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(count_kernel):
    result = np.empty(8, np.int64)
    run = bind_kernel(count_kernel(8), [], [result], threads=2)
    run()
    child = os.fork()
    if child == 0:
        result[...] = 0
        run()
        os._exit(0 if result.tolist() == list(range(1, 9)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_buffers_of_other_layouts_are_refused(scale_kernel):
    code = scale_kernel(2.0, 9)
    square = np.ones((3, 3), np.float32)
    with pytest.raises(UsageError, match=r"buffer 1 \(float32\(3, 3\)\).*ascontiguousarray"):
        bind_kernel(code, [square], [np.empty((3, 3), np.float32).T])()
    read_only = np.empty(9, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(UsageError, match=r"Result 0 .* read-only"):
        bind_kernel(code, [square], [read_only])()
    with pytest.raises(UsageError, match="at least one thread, not 0"):
        bind_kernel(code, [square], [np.empty(9, np.float32)], threads=0)()


def test_scratch_that_cannot_be_had_is_an_error(scale_kernel):
    code = scale_kernel(2.0, 1)
    greedy = KernelCode(code.entry, 1 << 60, code)
    with pytest.raises(RuntimeLibraryError, match="scratch"):
        bind_kernel(greedy, [np.ones(1, np.float32)], [np.empty(1, np.float32)])()


@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_aligned_empty(shape):
    array = aligned_empty(shape, np.float64)
    assert array.shape == shape
    assert array.dtype == np.float64
    assert array.size == 0 or array.ctypes.data % 64 == 0
    array[...] = 1.5
    assert array.sum() == 1.5 * array.size


def test_damaged_object_files_are_refused():
    with pytest.raises(CodegenError, match=r"9 bytes.*'kernel' cannot be loaded"):
        load_object(b"no object", "kernel")


def test_time_paired_takes_turns():
    order: list[str] = []
    times = time_paired(lambda: order.append("a"), lambda: order.append("b"), rounds=5, warmup=2)
    assert order == ["a", "b"] * 7
    assert times.a.median_us >= 0
    assert times.speedup > 0
    with pytest.raises(UsageError, match="one round"):
        time_paired(order.clear, order.clear, rounds=0)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint32",
        "int64",
        "float16",
        "float64",
        "complex64",
        ml_dtypes.bfloat16,
        ml_dtypes.int4,
        ml_dtypes.uint2,
        ml_dtypes.float8_e4m3fn,
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (700, 500)])
def test_made_up_values_are_harmless(dtype, shape):
    array = made_up(shape, dtype, np.random.default_rng(0))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.size == 0 or array.ctypes.data % BUFFER_ALIGNMENT == 0
    values = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    assert np.all(np.abs(values) < 10)
    if array.dtype.kind in "iu" or array.dtype.name.startswith(("int", "uint")):
        assert np.all(values >= 0)
    if array.size > 100:
        assert np.unique(values).size >= 2


def test_times_per_call():
    times = PairedTimes(Timing(40.0, 8.0), Timing(20.0, 4.0), 2.0, 0.1)
    assert times.per_call(4) == PairedTimes(Timing(10.0, 2.0), Timing(5.0, 1.0), 2.0, 0.1)
