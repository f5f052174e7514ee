"""Loop programs as C11: a function for each kernel, and one for the tasks of each parallel loop."""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.codegen.c.dialect import C
from hlo_mlc.codegen.c.prelude import CONTEXT, HEAD, needed_by
from hlo_mlc.codegen.c.statements import Functions, FunctionWriter, takes_context, touched_by
from hlo_mlc.codegen.clike.values import Memory
from hlo_mlc.loops import dependence
from hlo_mlc.loops.core import LoopProgram


def print_program(
    program: LoopProgram,
    symbol: str,
    lines: Mapping[str, str] | None = None,
    *,
    is_static: bool = True,
) -> str:
    """The functions of a program: `symbol(context, buffers, scratch)` is the last of them.

    Other files can call it unless it `is_static`; `lines` are the user's lines that compute what
    buffers hold, by the names of these.

    Raises: CodegenError for what C has no words for.
    """
    functions = Functions(symbol)
    writer = FunctionWriter(Memory({}, C), dependence.Memory.of(program), symbol, functions)
    buffers, scratch = map(writer.lines.fresh, ("buffers", "scratch"))
    places = {b: f"{buffers}[{n}]" for n, b in enumerate((*program.operands, *program.results))}
    places |= {b: f"(void*)((char*){scratch} + {offset})" for b, offset in program.scratch}
    used = set(touched_by(program.body))
    needed = [b for b in places if b in used]
    for buffer, kind, name in writer.declare(needed):
        sizes = ", ".join(map(str, buffer.shape))
        where = (lines or {}).get(buffer.name, "")
        described = f"{buffer.dtype.name}[{sizes}]{': ' if where else ''}{where}"
        described = described.replace("*/", "* /")
        writer.lines.emit(f"{kind} {name} = {places[buffer]};  /* {described} */")
    writer.write(program.body)
    arena = {buffer for buffer, _ in program.scratch}
    is_used = {
        "context": takes_context(program.body),
        buffers: any(b not in arena for b in needed),
        scratch: any(b in arena for b in needed),
    }
    unused = [f"  (void){name};" for name in ("context", buffers, scratch) if not is_used[name]]
    return "\n".join(
        (
            *functions.texts,
            f"{'static ' if is_static else ''}void {symbol}(",
            f"    MlcContext* context, void** {buffers}, void* {scratch}) {{",
            *unused,
            *writer.text(),
            "}",
            "",
        )
    )


def print_file(functions: str, comment: str = "") -> str:
    """A whole file with such functions, and what they need."""
    head = f"/* {comment} */\n" if comment else ""
    return f"{head}{HEAD}{CONTEXT}{needed_by(functions)}{functions}"
