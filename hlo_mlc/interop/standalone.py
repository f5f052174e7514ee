"""Exporting a function as a C library that needs neither Python nor JAX nor XLA."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from hlo_mlc.backends.c import CBackend
from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.codegen.c.printer import print_program
from hlo_mlc.codegen.c.standalone import print_standalone
from hlo_mlc.codegen.clike.values import identifier
from hlo_mlc.codegen.cpu.assemble import compile_ir
from hlo_mlc.codegen.cpu.standalone import print_entry
from hlo_mlc.compiler import clusters_of
from hlo_mlc.expr.dtypes import FLOATS_OF_A_BYTE, PACKED, TensorType
from hlo_mlc.graph.core import Graph
from hlo_mlc.interop import compat
from hlo_mlc.interop.c_names import why_no_name
from hlo_mlc.interop.export import embedded_positions
from hlo_mlc.kernel_objects import kernel_source, proved_loops
from hlo_mlc.loops.signature import ALIGNMENT
from hlo_mlc.partition.memory import MemoryPlan, plan_memory
from hlo_mlc.partition.plan import Plan
from hlo_mlc.runtime.files import path_of, writable, write_for_others
from hlo_mlc.runtime.shared_library import shared_library
from hlo_mlc.runtime.static_library import Member, static_library
from hlo_mlc.support.errors import UnsupportedOpError, UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import byte_size, counted, short_line
from hlo_mlc.target import cpu
from hlo_mlc.target.levels import architecture

_C_TYPES = {
    "i1": "bool",
    "i8": "int8_t",
    "i16": "int16_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "ui8": "uint8_t",
    "ui16": "uint16_t",
    "ui32": "uint32_t",
    "ui64": "uint64_t",
    **dict.fromkeys((d.name for d in (*FLOATS_OF_A_BYTE, *PACKED)), "uint8_t"),
    "f16": "uint16_t",
    "bf16": "uint16_t",
    "f32": "float",
    "f64": "double",
    "complex<f32>": "float",
    "complex<f64>": "double",  # two for a number
}


@dataclass(frozen=True, slots=True)
class LibraryReport:
    """What was written: a library and its header."""

    library: Path
    header: Path
    kernels: int
    workspace_bytes: int
    total_bytes: int  # of the buffers in the workspace, if each had memory of its own

    def __str__(self) -> str:
        shared = (
            f" ({byte_size(self.total_bytes)} if no two buffers shared memory)"
            if self.total_bytes > self.workspace_bytes
            else ""
        )
        workspace = (
            f"a workspace of {byte_size(self.workspace_bytes)}{shared}"
            if self.workspace_bytes
            else "no workspace"
        )
        return f"{self.library}, {self.header}: {counted(self.kernels, 'kernel')}; {workspace}"


def export_c(
    function: Callable[..., Any],
    *args: Any,
    path: str | os.PathLike[str],
    target: str = "host",
    embed: int | Sequence[int] = (),
    **kwargs: Any,
) -> LibraryReport:
    """Writes a function as a library with a header: plain C, for one thread, without Python, JAX
    or XLA.

    `path` ends in the function's name in C, to which `.a` is added, or is that of the library:
    `.a` for a static one, `.so` for a shared one, which takes the system's linker, `.c` for its
    source, which any compiler of C11 may build, for any machine, with the mathematical library
    (`-lm`). The header lies beside it; `libname.so` belongs to `name.h`.

    The arguments are those of `export`; pytrees become one pointer for each leaf. Our kernels have
    to cover the function completely. Values of arguments in `embed`, and of arrays that the
    function closes over, go into the library.

    Raises: UsageError for arguments that make no sense, UnsupportedOpError for an operation that no
    kernel of ours computes, UnknownTargetError.
    """
    library, name = _library_and_name(path_of(path))
    writable(library, "a library")  # shows before anything is compiled
    chosen = dataclasses.replace(cpu.named(target), cores=1)
    plain = function.choosing("xla") if hasattr(function, "choosing") else function
    inside = embedded_positions(embed, len(args))
    given = [n for n in range(len(args)) if n not in inside]

    def called(taken: list[Any], keywords: dict[str, Any]) -> Any:
        values = dict(zip(given, taken, strict=True))
        return plain(*(values.get(n, args[n]) for n in range(len(args))), **keywords)

    described = [args[n] for n in given], dict(kwargs)
    lowered = (
        compat.jit(called, keep_unused=True).trace(*described).lower(lowering_platforms=("cpu",))
    )
    # There is nobody in such a library whom kernels with checks could tell what they find.
    options = Options.from_environment(choose="ours", check=False)
    _, plan = clusters_of(lowered.compiler_ir(), options)
    for node, reason in plan.left.items():
        raise UnsupportedOpError(
            node.op,
            f"{reason}, and nobody but our kernels computes anything in a C library: "
            "hlo_mlc.export, or --format jax, writes a file that leaves it to XLA",
            location=node.location or None,
        )
    names = _parameters(function, len(args))
    leaves = [
        _name_of(where, [names[n] for n in given])
        for where, _ in jax.tree_util.tree_flatten_with_path(described)[0]
    ]
    prototype = _prototype(name, plan.graph, leaves)
    made = (_as_source if library.suffix == ".c" else _as_code)(
        library, name, prototype, plan, options, chosen
    )
    memory, header = made.memory, library.with_name(f"{name}.h")
    write_for_others(library, made.content, "a library")
    write_for_others(header, _header(name, prototype, memory).encode(), "a header")
    return LibraryReport(library, header, made.kernels, memory.workspace_bytes, memory.total_bytes)


@dataclass(frozen=True, slots=True)
class _Library:
    """What a library consists of."""

    content: bytes
    memory: MemoryPlan
    kernels: int


def _as_code(
    library: Path, name: str, prototype: str, plan: Plan, options: Options, target: cpu.CpuTarget
) -> _Library:
    """One object: libraries with the same kernel, for other targets maybe, are linked into one
    program, and each calls its own."""
    kernels = {
        c.kernel.fingerprint: kernel_source(c.kernel, options, CpuBackend(target))
        for c, _ in plan.taken
    }
    memory = plan_memory(plan.graph, {key: made.scratch_bytes for key, made in kernels.items()})
    entry = print_entry(
        name,
        memory,
        {key: made.symbol for key, made in kernels.items()},
        len(plan.graph.parameters),
        len(plan.graph.results),
        target,
    )
    code = compile_ir(entry, target, static=[made.text for made in kernels.values()])
    content = (
        shared_library(library.name, code, architecture(target))
        if library.suffix == ".so"
        else static_library([Member(f"{name[:10]}.o", name, code)])
    )
    return _Library(content, memory, len(kernels))


def _as_source(
    library: Path, name: str, prototype: str, plan: Plan, options: Options, target: cpu.CpuTarget
) -> _Library:
    """A file of C with a function for each kernel, by the name that people call it."""
    clusters = {c.kernel.fingerprint: c for c, _ in plan.taken}
    backend = CBackend(target)
    loops = {key: proved_loops(c.kernel, options, backend) for key, c in clusters.items()}
    symbols = {key: f"{name}_{identifier(c.kernel.name)}" for key, c in clusters.items()}
    memory = plan_memory(plan.graph, {key: made.scratch_bytes for key, made in loops.items()})
    texts = {
        key: (
            symbols[key],
            f"/* {c.kernel.name} */\n"
            + print_program(
                loops[key], symbols[key], {b: short_line(at) for b, at in c.locations.items()}
            ),
        )
        for key, c in clusters.items()
    }
    text = print_standalone(name, memory, texts, prototype)
    return _Library(text.encode(), memory, len(texts))


def _library_and_name(path: Path) -> tuple[Path, str]:
    """Where the library goes, and what its function is called."""
    library = path if path.suffix else path.with_suffix(".a")
    name = library.stem.removeprefix("lib") if path.suffix else library.stem
    if library.suffix not in (".a", ".so", ".c"):
        raise UsageError(
            f"{path}: the name of a library ends in .a (static) or .so (shared), or in .c (source)"
        )
    if reason := why_no_name(name):
        raise UsageError(
            f"{path}: a function in C cannot be called {name!r}: {reason}; the last "
            "part of the path is its name"
        )
    return library, name


def _parameters(function: Callable[..., Any], count: int) -> list[str]:
    """What the function calls its first arguments, where it says."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*named, *(f"argument {n}" for n in range(len(named), count))]


def _name_of(where: Sequence[Any], names: Sequence[str]) -> str:
    """A leaf of ([argument, …], {keyword: …}), as the caller of the function knows it."""
    side, first, *rest = where
    name = names[first.idx] if side.idx == 0 else str(first.key)
    return name + jax.tree_util.keystr(rest)


def _prototype(name: str, graph: Graph, leaves: Sequence[str]) -> str:
    """How the function is declared, without what follows."""
    operands = [
        _declared(v.type, f"a{n}", leaf, "const ")
        for n, (v, leaf) in enumerate(zip(graph.parameters, leaves, strict=True))
    ]
    results = [_declared(v.type, f"r{n}", "result") for n, v in enumerate(graph.results)]
    parameters = "\n    ".join([*operands, *results])
    return f"void {name}(\n    {parameters}\n    void* workspace)"


def _header(name: str, prototype: str, memory: MemoryPlan) -> str:
    guard = f"{name.upper()}_H_"
    return f"""\
/* {name}, compiled by hlo_mlc. Arrays are row-major, and may lie anywhere that suits their
 * elements, but results must not overlap with anything. 16-bit floats are passed as their bits;
 * of integers of less than 8 bits that share a byte the first has the lowest ones.
 * The workspace holds {name.upper()}_WORKSPACE_BYTES bytes, aligned to {ALIGNMENT}; it may be used
 * again after the call, and calls with different workspaces may run at the same time. */
#ifndef {guard}
#define {guard}

#include <stdbool.h>
#include <stdint.h>

#define {name.upper()}_WORKSPACE_BYTES {max(memory.workspace_bytes, 1)}

#ifdef __cplusplus
extern "C" {{
#endif

{prototype};

#ifdef __cplusplus
}}
#endif

#endif /* {guard} */
"""


def _declared(tensor: TensorType, name: str, what: str, qualifier: str = "") -> str:
    sizes = ", ".join(map(str, tensor.shape))
    shared = f", {8 // tensor.dtype.bits} in a byte" if tensor.dtype.is_packed else ""
    described = f"{what}: {tensor.dtype.name}[{sizes}]{shared}".replace("*/", "* /")
    return f"{qualifier}{_C_TYPES[tensor.dtype.name]}* {name},  /* {described} */"
