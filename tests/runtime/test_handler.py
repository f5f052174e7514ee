"""The custom call end to end under jax.jit."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.runtime import library, variants


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, np.float32)


def i64_as_pairs(count):
    """i64[count] for JAX without x64: every number is two u32, the low one first."""
    return jax.ShapeDtypeStruct((count, 2), np.uint32)


def test_single_task(call_kernel, scale_kernel, new_id):
    kernel_id = new_id()
    variants.publish(kernel_id, scale_kernel(3.0, 100))
    x = np.arange(100, dtype=np.float32)
    program = jax.jit(lambda x: call_kernel(kernel_id, f32(100), x + 1) - 1)
    np.testing.assert_array_equal(program(x), (x + 1) * 3 - 1)


@pytest.mark.parametrize("tasks", [1, 2, 3, 64, 5000])
def test_parallel_for_runs_each_task_once(call_kernel, count_kernel, new_id, tasks):
    kernel_id = new_id()
    variants.publish(kernel_id, count_kernel(tasks))
    program = jax.jit(lambda: call_kernel(kernel_id, i64_as_pairs(tasks)))
    for _ in range(20):
        np.testing.assert_array_equal(program()[:, 0], np.arange(1, tasks + 1))


def test_many_buffers(call_kernel, compile_kernel, new_id):
    kernel_id = new_id()
    variants.publish(
        kernel_id,
        compile_kernel("""
define void @kernel(ptr %ctx, ptr %buffers, ptr %scratch) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi float [ 0.0, %entry ], [ %added, %loop ]
  %operand = call ptr @buffer(ptr %buffers, i64 %i)
  %value = load float, ptr %operand
  %added = fadd float %sum, %value
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 200
  br i1 %more, label %loop, label %done
done:
  %result = call ptr @buffer(ptr %buffers, i64 %next)
  store float %added, ptr %result
  ret void
}
"""),
    )
    operands = [np.float32(i) for i in range(200)]
    program = jax.jit(lambda *xs: call_kernel(kernel_id, f32(), *xs))
    assert program(*operands) == sum(range(200))


ROWS_IR = """
define void @kernel(ptr %ctx, ptr %buffers, ptr %scratch) {{
entry:
  %operand = call ptr @buffer(ptr %buffers, i64 0)
  %step = call ptr @buffer(ptr %buffers, i64 1)
  %result = call ptr @buffer(ptr %buffers, i64 2)
  %added = load float, ptr %step
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %operand, i64 %i
  %to = getelementptr float, ptr %result, i64 %i
  %value = load float, ptr %from
  %sum = fadd float %value, %added
  %whole = fadd float %sum, {tag}
  store float %whole, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {count}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
"""result[i] = operand[i] + step[0] + tag, for so many elements."""


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 16, 23, 1000])
def test_rows_are_computed_in_blocks(call_kernel, compile_kernel, new_id, rows):
    """Of rows of 3 elements; the last operand has none. Blocks of 16, of 4 and of 1, in order."""
    sizes = (16, 4, 1)
    ids = [new_id() for _ in sizes]
    for kernel_id, size in zip(ids, sizes, strict=True):
        variants.publish(
            kernel_id, compile_kernel(ROWS_IR.format(tag=f"{size * 1000}.0", count=3 * size))
        )
    named = ",".join(f"{one}@{size}" for one, size in zip(ids, sizes, strict=True))
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    program = jax.jit(
        lambda x: call_kernel(
            named, f32(rows, 3), x, np.float32([0.5]), dims=(rows, 0, 0, 12, 0, 12)
        )
    )
    computed_by = [16] * (rows // 16) * 16 + [4] * (rows % 16 // 4) * 4 + [1] * (rows % 4)
    expected = x + 0.5 + 1000 * np.array(computed_by, np.float32)[:, None]
    for _ in range(5):
        np.testing.assert_array_equal(program(x), expected)


FOLD_IR = """
define void @kernel(ptr %ctx, ptr %buffers, ptr %scratch) {{
entry:
  %operand = call ptr @buffer(ptr %buffers, i64 0)
  %before = call ptr @buffer(ptr %buffers, i64 1)
  %result = call ptr @buffer(ptr %buffers, i64 2)
  %after = call ptr @buffer(ptr %buffers, i64 3)
  %given = load float, ptr %before
  %half = fmul float %given, 0.5
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi float [ %half, %entry ], [ %added, %loop ]
  %from = getelementptr float, ptr %operand, i64 %i
  %to = getelementptr float, ptr %result, i64 %i
  %value = load float, ptr %from
  store float %value, ptr %to
  %added = fadd float %sum, %value
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {count}
  br i1 %more, label %loop, label %done
done:
  store float %added, ptr %after
  ret void
}}
"""
"""after = before / 2 + the sum of so many elements, which are copied as well."""


@pytest.mark.parametrize("rows", [1, 3, 8, 14, 400])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_rows_are_folded_in_order(call_kernel, compile_kernel, new_id, rows, groups):
    """Blocks of 4 rows and of 1, in groups, each of which begins with the same."""
    sizes = (4, 1)
    ids = [new_id() for _ in sizes]
    for kernel_id, size in zip(ids, sizes, strict=True):
        variants.publish(kernel_id, compile_kernel(FOLD_IR.format(count=size)))
    named = ",".join(f"{one}@{size}" for one, size in zip(ids, sizes, strict=True))
    x = np.arange(rows, dtype=np.float32)
    blocks = [*x[: rows // 4 * 4].reshape(-1, 4), *x[rows // 4 * 4 :, None]]
    groups = min(groups, len(blocks))  # none is without blocks
    given = [f32(rows), f32(groups), f32(groups), jax.ShapeDtypeStruct((0,), np.uint8)]
    program = jax.jit(
        lambda x: call_kernel(
            named, given, x, np.float32([8.0]), dims=(rows, groups, 1, 4, 0, 4, 0, 4)
        )[:2]
    )
    expected = []
    for group in range(groups):
        folded = np.float32(8)
        for block in blocks[group * len(blocks) // groups : (group + 1) * len(blocks) // groups]:
            folded = folded / 2 + block.sum()
        expected.append(folded)
    for _ in range(5):
        copied, folded = program(x)
        np.testing.assert_array_equal(copied, x)
        np.testing.assert_allclose(folded, expected, rtol=1e-6)


def test_sizes_of_another_version_are_refused(call_kernel, scale_kernel, new_id):
    known = new_id()
    variants.publish(known, scale_kernel(2.0, 8))
    for dims in ((8, 8, 8), (8,), (8, 0, 1, 8, 8), (8, 0, -1, 8)):
        program = jax.jit(lambda x, dims=dims: call_kernel(f"{known}@1", f32(8, 2), x, dims=dims))
        with pytest.raises(jax.errors.JaxRuntimeError, match="compile the program again"):
            program(jnp.ones((8, 2)))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("{known}@4,nobody-made-this@1", r"NOT_FOUND.*kernel 'nobody-made-this'.*load the"),
        ("{known}@0", r"INVALID_ARGUMENT.*a block of 1 row or more, got '.*@0'"),
        ("{known}@,{known}@1", r"INVALID_ARGUMENT.*got '.*@'"),
    ],
)
def test_blocks_that_cannot_be_called_are_named(call_kernel, scale_kernel, new_id, named, said):
    known = new_id()
    variants.publish(known, scale_kernel(2.0, 8))
    program = jax.jit(
        lambda x: call_kernel(named.format(known=known), f32(8, 2), x, dims=(8, 0, 0, 8, 8))
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match=said):
        program(jnp.ones((8, 2)))


def test_missing_kernel_is_named_with_what_to_do(call_kernel):
    program = jax.jit(lambda x: call_kernel("nobody-made-this", f32(2), x))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"NOT_FOUND.*nobody-made-this.*load the"):
        program(jnp.ones(2))


def test_hot_swap_reaches_a_loaded_executable(call_kernel, scale_kernel, new_id):
    kernel_id = new_id()
    double, triple = scale_kernel(2.0, 4), scale_kernel(3.0, 4)
    variants.publish(kernel_id, double)
    call = jax.jit(lambda x: call_kernel(kernel_id, f32(4), x))
    program = call.lower(f32(4)).compile()
    x = np.ones(4, np.float32)
    results = []
    for code in [double, triple, double]:
        variants.publish(kernel_id, code)
        results.append(float(program(x)[0]))
    assert results == [2.0, 3.0, 2.0]


def test_removed_kernel_stays_with_loaded_executables_only(call_kernel, scale_kernel, new_id):
    kernel_id = new_id()
    variants.publish(kernel_id, scale_kernel(5.0, 3))
    call = jax.jit(lambda x: call_kernel(kernel_id, f32(*x.shape), x))
    assert call(np.ones(3, np.float32))[0] == 5
    assert variants.exists(kernel_id)
    assert variants.remove(kernel_id)
    assert not variants.exists(kernel_id)
    assert not variants.remove(kernel_id)
    assert call(np.ones(3, np.float32))[0] == 5
    with pytest.raises(jax.errors.JaxRuntimeError, match="NOT_FOUND"):
        call(np.ones(4, np.float32))


SCRATCH_TASKS = 8
SCRATCH_ELEMENTS = 4096
# Fills its scratch with the operand in parallel tasks, then sums it: a wrong sum means that
# another execution wrote to the same scratch. The second result is the scratch's misalignment.
SCRATCH_IR = f"""
%Closure = type {{ ptr, float }}
define internal void @body(ptr %closure, i64 %task) {{
entry:
  %scratch = load ptr, ptr %closure
  %value_at = getelementptr %Closure, ptr %closure, i32 0, i32 1
  %value = load float, ptr %value_at
  %per_task = sdiv i64 {SCRATCH_ELEMENTS}, {SCRATCH_TASKS}
  %start = mul i64 %task, %per_task
  %end = add i64 %start, %per_task
  br label %loop
loop:
  %i = phi i64 [ %start, %entry ], [ %next, %loop ]
  %to = getelementptr float, ptr %scratch, i64 %i
  store volatile float %value, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
define void @kernel(ptr %ctx, ptr %buffers, ptr %scratch) {{
entry:
  %operand = call ptr @buffer(ptr %buffers, i64 0)
  %result = call ptr @buffer(ptr %buffers, i64 1)
  %value = load float, ptr %operand
  %closure = alloca %Closure
  store ptr %scratch, ptr %closure
  %value_at = getelementptr %Closure, ptr %closure, i32 0, i32 1
  store float %value, ptr %value_at
  call void @parallel_for(ptr %ctx, ptr @body, ptr %closure, i64 {SCRATCH_TASKS})
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi float [ 0.0, %entry ], [ %added, %loop ]
  %from = getelementptr float, ptr %scratch, i64 %i
  %element = load volatile float, ptr %from
  %added = fadd float %sum, %element
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {SCRATCH_ELEMENTS}
  br i1 %more, label %loop, label %done
done:
  store float %added, ptr %result
  %address = ptrtoint ptr %scratch to i64
  %misaligned = and i64 %address, 63
  %as_float = sitofp i64 %misaligned to float
  %second = getelementptr float, ptr %result, i64 1
  store float %as_float, ptr %second
  ret void
}}
"""


def test_scratch_and_concurrent_executions(call_kernel, compile_kernel, new_id):
    kernel_id = new_id()
    variants.publish(kernel_id, compile_kernel(SCRATCH_IR, scratch_bytes=4 * SCRATCH_ELEMENTS))
    program = jax.jit(lambda x: call_kernel(kernel_id, f32(2), x)).lower(f32()).compile()
    wrong: list[object] = []

    def run(value: float) -> None:
        x = np.float32(value)
        for _ in range(100):
            result = np.asarray(program(x))
            if result.tolist() != [value * SCRATCH_ELEMENTS, 0.0]:
                wrong.append((value, result))

    threads = [threading.Thread(target=run, args=(float(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_swap_to_a_variant_with_more_scratch(call_kernel, compile_kernel, scale_kernel, new_id):
    kernel_id = new_id()
    little = scale_kernel(0.0, 1)
    variants.publish(kernel_id, variants.KernelCode(little.entry, 64, little))
    program = jax.jit(lambda x: call_kernel(kernel_id, f32(2), x))
    program(np.float32(1))
    variants.publish(kernel_id, compile_kernel(SCRATCH_IR, scratch_bytes=4 * SCRATCH_ELEMENTS))
    assert program(np.float32(1)).tolist() == [SCRATCH_ELEMENTS, 0.0]


# Where its scratch is, of which it writes a byte in each page.
PLACE_IR = """
define void @kernel(ptr %ctx, ptr %buffers, ptr %scratch) {{
entry:
  %result = call ptr @buffer(ptr %buffers, i64 0)
  store ptr %scratch, ptr %result
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %to = getelementptr i8, ptr %scratch, i64 %i
  store volatile i8 1, ptr %to
  %next = add i64 %i, 4096
  %more = icmp slt i64 %next, {bytes}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def test_kernels_take_turns_with_the_same_scratch(call_kernel, compile_kernel, new_id):
    """As much of it as the largest needs, and no more when that is gone."""

    def program(scratch_bytes: int) -> tuple[str, jax.stages.Compiled]:
        kernel_id = new_id()
        variants.publish(
            kernel_id, compile_kernel(PLACE_IR.format(bytes=scratch_bytes), scratch_bytes)
        )
        result = jax.ShapeDtypeStruct((2,), np.uint32)
        traced = jax.jit(lambda: call_kernel(kernel_id, result))
        return kernel_id, traced.lower().compile()

    little, much = 64 << 20, 256 << 20  # more than any other test needs
    (_, first), (_, second), (largest, third) = program(little), program(little), program(much)
    before = resident_bytes()
    assert first().tolist() == second().tolist()
    assert third().tolist() == first().tolist() == second().tolist()
    assert much <= resident_bytes() - before < much + little
    variants.remove(largest)
    jax.clear_caches()
    del third
    gc.collect()
    first()
    assert resident_bytes() - before < little + (8 << 20)


def resident_bytes() -> int:
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_scratch_that_cannot_be_had_is_an_error(call_kernel, scale_kernel, new_id):
    kernel_id = new_id()
    code = scale_kernel(1.0, 2)
    variants.publish(kernel_id, variants.KernelCode(code.entry, 1 << 60, code))
    program = jax.jit(lambda x: call_kernel(kernel_id, f32(2), x))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED.*scratch"):
        program(np.ones(2, np.float32))


def mapping_flags(address: int) -> list[str]:
    """What the system says of the memory there (`VmFlags` in proc_pid_smaps(5))."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no huge pages"
)
def test_large_results_are_in_huge_pages(call_kernel, scale_kernel, new_id):
    """One page fault for 2 MiB, not for 4 KiB."""
    kernel_id = new_id()
    count = 12 << 20
    variants.publish(kernel_id, scale_kernel(2.0, count))
    x = jnp.ones(count, np.float32)
    ours = jax.jit(lambda x: call_kernel(kernel_id, f32(count), x))(x)
    theirs = jax.jit(lambda x: x * 2)(x)
    np.testing.assert_array_equal(ours, theirs)
    middle = [array.unsafe_buffer_pointer() + array.nbytes // 2 for array in (ours, theirs)]
    assert ["hg" in mapping_flags(address) for address in middle] == [True, False]


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ),
    reason="another allocator, or one that is told what to keep",
)
def test_freed_memory_is_kept_for_what_comes_next(call_kernel, scale_kernel, new_id):
    """Blocks of less than 32 MiB are on a heap, not mapped each: bit 1 of the word before one says
    which."""
    kernel_id = new_id()
    variants.publish(kernel_id, scale_kernel(2.0, 2))
    jax.jit(lambda x: call_kernel(kernel_id, f32(2), x))(np.ones(2, np.float32))
    allocator = ctypes.CDLL(None)
    allocator.malloc.restype, allocator.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    allocator.free.restype, allocator.free.argtypes = None, [ctypes.c_void_p]
    block = allocator.malloc(24 << 20)
    size_and_flags = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
    allocator.free(block)
    assert not size_and_flags & 2


def test_swap_while_executions_run(call_kernel, scale_kernel, new_id):
    kernel_id = new_id()
    size = 512
    codes = [scale_kernel(2.0, size), scale_kernel(3.0, size)]
    variants.publish(kernel_id, codes[0])
    program = jax.jit(lambda x: call_kernel(kernel_id, f32(size), x))
    x = np.ones(size, np.float32)
    program(x)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for code in codes:
                variants.publish(kernel_id, code)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        results = [np.unique(program(x)).tolist() for _ in range(200)]
    finally:
        stop.set()
        swapper.join()
    assert all(result in ([2.0], [3.0]) for result in results)


def test_profile_counts_calls_only_while_enabled(call_kernel, scale_kernel, new_id):
    kernel_id = new_id()
    variants.publish(kernel_id, scale_kernel(2.0, 8))
    program = jax.jit(lambda x: call_kernel(kernel_id, f32(8), x))
    x = np.ones(8, np.float32)
    variants.enable_profiling(False)  # a background tuner of an earlier test may count calls yet
    program(x).block_until_ready()
    assert variants.read_profile(kernel_id) == variants.Profile(0, 0)
    variants.enable_profiling()
    try:
        for _ in range(5):
            program(x).block_until_ready()
    finally:
        variants.enable_profiling(False)
    program(x).block_until_ready()
    profile = variants.read_profile(kernel_id)
    assert profile.calls == 5
    assert profile.total_ns > 0
    variants.reset_profile()
    assert variants.read_profile(kernel_id) == variants.Profile(0, 0)
    assert variants.read_profile("nobody-made-this") is None


def test_kernel_inside_a_loop_and_no_elements(call_kernel, scale_kernel, count_kernel, new_id):
    scale, count = new_id(), new_id()
    variants.publish(scale, scale_kernel(2.0, 3))
    variants.publish(count, count_kernel(0))
    program = jax.jit(
        lambda x: jax.lax.fori_loop(0, 10, lambda _, y: call_kernel(scale, f32(3), y), x)
    )
    np.testing.assert_array_equal(program(np.ones(3, np.float32)), np.full(3, 1024.0))
    nothing = jax.jit(lambda: call_kernel(count, i64_as_pairs(0)))
    assert nothing().shape == (0, 2)


def test_registering_again_is_harmless(call_kernel):
    threads = [threading.Thread(target=library.register_with_jax) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.load() is library.load()
