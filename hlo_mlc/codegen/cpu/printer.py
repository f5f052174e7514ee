"""Loop IR as LLVM IR: one module a kernel."""

from __future__ import annotations

import sys

from hlo_mlc.codegen.cpu import checking, reading, statements
from hlo_mlc.codegen.cpu.program import Module
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.support.errors import CodeLimitError
from hlo_mlc.target.cpu import CpuTarget


def print_program(
    program: LoopProgram, target: CpuTarget, checked: bool = False, most_lines: int = sys.maxsize
) -> str:
    """A kernel as an LLVM module with one external function, named like the kernel.

    Its arguments are those of `MlcEntry` (custom_calls/mlc_abi.h): context, buffers, scratch.
    The bodies of parallel loops are internal functions, called by the context.  With
    checks (checking.py) all that the kernel does is in an internal function, `@checked`.

    Raises: CodegenError for a program that breaks the loop IR's rules or needs too much stack;
    CodeLimitError, as soon as it is known, for one of more than `most_lines`.
    """
    module = Module(program, target, checked=checked, most_lines=most_lines)
    entry = Writer(module, reading.load)
    statements.write_all(entry, program.body)
    name = "internal void @checked" if checked else f'void @"{program.name}"'
    statements.finish(entry, f"define {name}(ptr %ctx, ptr %buffers, ptr %scratch)")
    if checked:
        module.functions.append(checking.entry(module, "@checked"))
    tables = [f"{name} = {definition}" for definition, name in module.tables.items()]
    text = "\n".join(
        [f'target triple = "{target.triple}"', *tables, *module.functions, *module.metadata(), ""]
    )
    if text.count("\n") > most_lines:
        raise CodeLimitError(program.name, most_lines)
    return text
