"""The entry of a program without XLA: LLVM IR that calls its kernels one after the other."""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.partition.memory import MemoryPlan, Place
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cpu import CpuTarget

# Subnormals are flushed to zero, as in XLA's programs (mlc_abi.h).
_X86_FLUSH = 0x8040  # MXCSR: FTZ and DAZ. Source: Intel SDM volume 1, 10.2.3
_AARCH64_FLUSH = 1 << 24  # FPCR: FZ. Source: Arm ARM, C5.2.8

_X86_MODE = """\
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal i64 @mode() {
  %at = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %mode = load i32, ptr %at, align 4
  %wide = zext i32 %mode to i64
  ret i64 %wide
}
define internal void @set_mode(i64 %wide) {
  %at = alloca i32, align 4
  %mode = trunc i64 %wide to i32
  store i32 %mode, ptr %at, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}
"""
_AARCH64_MODE = """\
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal i64 @mode() {
  %mode = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %mode
}
define internal void @set_mode(i64 %mode) {
  call void @llvm.aarch64.set.fpcr(i64 %mode)
  ret void
}
"""
_SERIAL = """\
define internal void @serial(ptr %context, ptr %body, ptr %closure, i64 %count) {
entry:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %loop, label %done
loop:
  %task = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void %body(ptr %closure, i64 %task)
  %next = add i64 %task, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


def print_entry(
    name: str,
    plan: MemoryPlan,
    symbols: Mapping[str, str],
    operands: int,
    results: int,
    target: CpuTarget,
) -> str:
    """`void name(operand pointers…, result pointers…, void* workspace)`, on the caller's thread.

    `symbols` are those of the kernels, by id.

    Raises: CodegenError for a target whose floating-point mode we cannot set.
    """
    modes = {"x86_64": (_X86_MODE, _X86_FLUSH), "aarch64": (_AARCH64_MODE, _AARCH64_FLUSH)}
    architecture = target.triple.partition("-")[0]
    if architecture not in modes:
        raise CodegenError(f"There is no way to set the floating-point mode of {architecture}")
    functions, flush = modes[architecture]
    lines = [f'target triple = "{target.triple}"', functions, _SERIAL]
    lines += [
        f'declare void @"{symbol}"(ptr, ptr, ptr)' for symbol in sorted(set(symbols.values()))
    ]
    for number, array in enumerate(plan.constants):
        text = array.tobytes().hex("\\")
        lines.append(
            f"@constant{number} = internal constant [{array.nbytes} x i8] "
            + (f'c"\\{text}"' if text else "zeroinitializer")
            + ", align 64"
        )
    parameters = [f"ptr %a{n}" for n in range(operands)] + [f"ptr %r{n}" for n in range(results)]
    body = _Body()
    for invocation in plan.invocations:
        for position, place in enumerate(invocation.buffers):
            at = body.offset("%buffers", 8 * position)
            body.emit(f"store ptr {body.pointer(place)}, ptr {at}, align 8")
        scratch = body.pointer(Place("workspace", invocation.scratch))
        body.emit(
            f'call void @"{symbols[invocation.kernel]}"(ptr %context, ptr %buffers, ptr {scratch})'
        )
    for copy in plan.copies:
        body.emit(
            f"call void @llvm.memcpy.p0.p0.i64(ptr {body.pointer(copy.target)}, "
            f"ptr {body.pointer(copy.source)}, i64 {copy.bytes}, i1 false)"
        )
    most = max((len(invocation.buffers) for invocation in plan.invocations), default=1)
    lines += [
        f'define void @"{name}"({", ".join([*parameters, "ptr %workspace"])}) {{',
        f"  %buffers = alloca [{most} x ptr], align 8",
        "  %context = alloca { ptr, i64 }, align 8",
        "  store ptr @serial, ptr %context, align 8",
        "  %threads = getelementptr i8, ptr %context, i64 8",
        "  store i64 1, ptr %threads, align 8",
        "  %usual = call i64 @mode()",
        f"  %flushing = or i64 %usual, {flush}",
        "  call void @set_mode(i64 %flushing)",
        *body.lines,
        "  call void @set_mode(i64 %usual)",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


class _Body:
    """Instructions, and the pointers that they define."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def emit(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def pointer(self, place: Place) -> str:
        match place.kind:
            case "operand":
                return f"%a{place.index}"
            case "result":
                return f"%r{place.index}"
            case "constant":
                return f"@constant{place.index}"
        return self.offset("%workspace", place.index)

    def offset(self, base: str, size: int) -> str:
        if not size:
            return base
        name = f"%p{len(self.lines)}"
        self.emit(f"{name} = getelementptr i8, ptr {base}, i64 {size}")
        return name
