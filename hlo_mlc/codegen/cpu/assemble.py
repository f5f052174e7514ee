"""From LLVM IR to object code and assembly, through LLVM."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import llvmlite.binding as llvm

from hlo_mlc.support.errors import CodegenError
from hlo_mlc.support.locks import AwaitedByForks, let_forks_wait, process_lock
from hlo_mlc.target.cpu import CpuTarget, host
from hlo_mlc.target.levels import architecture

let_forks_wait(llvm.ffi.lib._lock)  # which lets one thread at a time into LLVM

# Selecting instructions, nine tenths of LLVM's work, is done past that lock, which is for threads
# that share a context or a machine: here each object has a context, and who makes it a machine.
# Source: llvmlite's change 318; "Threads and LLVM" in LLVM's Programmer's Manual.
_select = llvm.ffi.lib.LLVMPY_TargetMachineEmitToMemory._cfn
_selecting = AwaitedByForks()
LATER = AwaitedByForks()
"""Assembling that nobody waits for, which a forked child does not have. Made last, so that forks
wait for it before they take what it needs."""
_AS_OBJECT = 1

# Vectors and loops are as we want them; LLVM only keeps arrays in registers, removes what that
# leaves over, and selects instructions.
_CODE_GENERATION_LEVEL = 2
# Below it, LLVM selects the same instructions and leaves them in the order that they had when they
# got registers.  Of six kernels of 3,000 to 7,000 lines that saved 0.08 to 0.46 of its time; five
# such ran as long (0.99 to 1.01), as processors go by an order of their own.  In short ones there
# is little to save, and some ran longer (exp 1.03).
_LEVEL_FOR_LONG_CODE, _LONG_CODE_LINES = 1, 2500

# A loop over vectors, with something to put into registers: all passes have something to do.
_SMALL = """
define void @small(ptr %array, i64 %count) {
entry:
  %last = alloca <8 x float>
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %place = getelementptr <8 x float>, ptr %array, i64 %i
  %read = load <8 x float>, ptr %place, align 4
  %sum = fadd <8 x float> %read, %read
  store <8 x float> %sum, ptr %last
  %kept = load <8 x float>, ptr %last
  store <8 x float> %kept, ptr %place, align 4
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""


def compile_ir(ir: str, target: CpuTarget, *, static: Iterable[str] = ()) -> bytes:
    """The relocatable object file (ELF) that LLVM makes of a module, and of those in `static`, of
    which nothing is seen from outside.

    Raises: CodegenError for text that is no valid module, with the line that LLVM rejects.
    """
    static = tuple(static)
    with _machine(target, _level(ir, *static)) as machine:
        return _object(machine, _optimized(ir, machine, static))


def warm_up(target: CpuTarget) -> None:
    """Has LLVM make a small object, once, which takes it 10 to 20 ms: most of them for what it
    reads of itself from disk, and prepares.  Who asks while another thread does waits for that.

    Raises: CodegenError for a target that LLVM was built without.
    """
    with _warming:
        _warmed_up(target)


@functools.cache
def _warmed_up(target: CpuTarget) -> None:
    compile_ir(_SMALL, target)


_warming = process_lock()


def assembly(ir: str, target: CpuTarget) -> str:
    """The same code as assembly, for people.

    Raises: CodegenError for text that is no valid module.
    """
    with _machine(target, _level(ir)) as machine:
        return machine.emit_assembly(_optimized(ir, machine))


def _level(*texts: str) -> int:
    """The level at which the code of these modules is generated."""
    is_long = sum(text.count("\n") for text in texts) > _LONG_CODE_LINES
    return _LEVEL_FOR_LONG_CODE if is_long else _CODE_GENERATION_LEVEL


def _optimized(ir: str, machine: llvm.TargetMachine, static: Iterable[str] = ()) -> llvm.ModuleRef:
    context = llvm.create_context()  # one for each object: contexts belong to one thread
    module = _parsed(ir, context)
    for text in static:
        part = _parsed(text, context)
        names = [function.name for function in part.functions if not function.is_declaration]
        module.link_in(part)
        for name in names:
            module.get_function(name).linkage = llvm.Linkage.internal
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return module


def _parsed(ir: str, context: llvm.ContextRef) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(ir, context)
        module.verify()
    except RuntimeError as error:
        raise CodegenError(
            f"LLVM rejects the generated code: {str(error).strip()}",
            context=_offending_line(ir, str(error)),
        ) from error
    return module


def _offending_line(ir: str, message: str) -> str | None:
    found = re.search(r"<string>:(\d+):", message)
    lines = ir.splitlines()
    if found is None or not 0 < int(found[1]) <= len(lines):
        return None
    return lines[int(found[1]) - 1].strip()


def _object(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    """What `machine.emit_object` gives, while other threads do the same."""
    library = llvm.ffi.lib
    with llvm.ffi.OutputString() as error:
        with _selecting:
            buffer = _select(machine, module, _AS_OBJECT, error)
        if not buffer:
            raise CodegenError(f"LLVM makes no object of the generated code: {error}")
    try:
        return ctypes.string_at(
            library.LLVMPY_GetBufferStart(buffer), library.LLVMPY_GetBufferSize(buffer)
        )
    finally:
        library.LLVMPY_DisposeMemoryBuffer(buffer)


_idle: defaultdict[tuple[CpuTarget, int], list[llvm.TargetMachine]] = defaultdict(list)
_making = process_lock()


@contextlib.contextmanager
def _machine(
    target: CpuTarget, level: int = _CODE_GENERATION_LEVEL
) -> Iterator[llvm.TargetMachine]:
    """A machine for a target that no other thread uses.  Making one takes about 2 ms.

    Raises: CodegenError for a target that LLVM was built without.
    """
    try:
        machine = _idle[target, level].pop()
    except IndexError:
        with _making:
            machine = _made(target, level)
    try:
        yield machine
    finally:
        _idle[target, level].append(machine)


def _made(target: CpuTarget, level: int) -> llvm.TargetMachine:
    _initialize(architecture(target) == architecture(host()))
    try:
        made = llvm.Target.from_triple(target.triple)
    except RuntimeError as error:
        raise CodegenError(f"LLVM cannot make code for {target.name!r}: {error}") from error
    return made.create_target_machine(
        cpu=target.cpu, features=target.features, opt=level, reloc="pic", codemodel="small"
    )


@functools.cache
def _initialize(is_native: bool) -> None:
    """Has LLVM know this machine's architecture, or all: those besides read 10 MB of it from disk,
    which stay in memory."""
    if is_native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
