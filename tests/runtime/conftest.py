"""Kernels written by hand in LLVM IR, so that the runtime is tested without the compiler."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import llvmlite.binding as llvm
import numpy as np
import pytest

from hlo_mlc.runtime import library, variants
from hlo_mlc.runtime.variants import KernelCode

# What every kernel below may use: its arguments, and the context's members by name.
_PRELUDE = """
%Context = type { ptr, i64 }

define internal ptr @buffer(ptr %buffers, i64 %index) alwaysinline {
  %slot = getelementptr ptr, ptr %buffers, i64 %index
  %address = load ptr, ptr %slot
  ret ptr %address
}

define internal void @parallel_for(ptr %ctx, ptr %body, ptr %closure, i64 %count) alwaysinline {
  %function = load ptr, ptr %ctx
  call void %function(ptr %ctx, ptr %body, ptr %closure, i64 %count)
  ret void
}
"""


@pytest.fixture(scope="session")
def compile_kernel() -> Callable[..., KernelCode]:
    """Turns LLVM IR that defines `@kernel(ctx, buffers, scratch)` into loaded code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), opt=1, reloc="pic", codemodel="small"
    )

    def compile_kernel(ir: str, scratch_bytes: int = 0) -> KernelCode:
        module = llvm.parse_assembly(_PRELUDE + ir)
        module.verify()
        return variants.load_object(machine.emit_object(module), "kernel", scratch_bytes)

    return compile_kernel


@pytest.fixture
def new_id() -> Callable[[], str]:
    """Makes kernel ids that no other test uses and forgets them after the test."""
    made: list[str] = []
    numbers = itertools.count()

    def new_id() -> str:
        made.append(f"test-{id(made)}-{next(numbers)}")
        return made[-1]

    yield new_id
    for kernel_id in made:
        variants.remove(kernel_id)


@pytest.fixture(scope="session")
def call_kernel() -> Callable[..., jax.Array]:
    """`call_kernel(id, result, *operands, dims=())`: the custom call, to be traced by JAX."""
    library.register_with_jax()

    def call_kernel(
        kernel_id: str,
        result: jax.ShapeDtypeStruct,
        *operands: jax.Array,
        dims: tuple[int, ...] = (),
    ) -> jax.Array:
        call = jax.ffi.ffi_call(library.TARGET_NAME, result)
        return call(*operands, id=kernel_id, dims=np.array(dims, np.int64))

    return call_kernel


def scale_ir(factor: float, count: int) -> str:
    """result[i] = operand[i] * factor, for so many elements of f32."""
    bits = np.float64(np.float32(factor)).view(np.uint64)
    return f"""
define void @kernel(ptr %ctx, ptr %buffers, ptr %scratch) {{
entry:
  %operand = call ptr @buffer(ptr %buffers, i64 0)
  %result = call ptr @buffer(ptr %buffers, i64 1)
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %operand, i64 %i
  %to = getelementptr float, ptr %result, i64 %i
  %value = load float, ptr %from
  %scaled = fmul float %value, 0x{bits:016X}
  store float %scaled, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {count}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


@pytest.fixture(scope="session")
def scale_kernel(compile_kernel: Callable[..., KernelCode]) -> Callable[[float, int], KernelCode]:
    """Makes a kernel `(f32[count]) -> f32[count]` that multiplies by the given factor."""
    return lambda factor, count: compile_kernel(scale_ir(factor, count))


@pytest.fixture(scope="session")
def count_kernel(compile_kernel: Callable[..., KernelCode]) -> Callable[[int], KernelCode]:
    """Makes `() -> i64[count]`: task i of a parallel_for adds i + 1 to element i, zeroed before."""
    return lambda count: compile_kernel(f"""
define internal void @body(ptr %closure, i64 %task) {{
  %to = getelementptr i64, ptr %closure, i64 %task
  %value = add i64 %task, 1
  %old = atomicrmw add ptr %to, i64 %value monotonic
  ret void
}}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define void @kernel(ptr %ctx, ptr %buffers, ptr %scratch) {{
  %result = call ptr @buffer(ptr %buffers, i64 0)
  call void @llvm.memset.p0.i64(ptr %result, i8 0, i64 {8 * count}, i1 false)
  call void @parallel_for(ptr %ctx, ptr @body, ptr %result, i64 {count})
  ret void
}}
""")
