"""Loop IR as CUDA C++: one function for each loop over blocks, and the launches of a program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hlo_mlc.codegen.clike.values import Memory, Place, identifier
from hlo_mlc.codegen.cuda.barriers import Barriers
from hlo_mlc.codegen.cuda.dialect import CUDA
from hlo_mlc.codegen.cuda.plan import CudaSource, Launch
from hlo_mlc.codegen.cuda.prelude import needed_by
from hlo_mlc.codegen.cuda.statements import BlockWriter, shared_size, thread_nest
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.loops import dependence
from hlo_mlc.loops.core import Allocate, For, LoopKind, LoopProgram, Stmt, folding, walk
from hlo_mlc.loops.dependence import accesses
from hlo_mlc.loops.rewrite import constant_extent
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cuda import VECTOR_BYTES, WARP, CudaTarget

# More launches than this are no plan but a loop that belongs into a kernel.
MAX_LAUNCHES = 4096
_SCRATCH = "scratch"  # the parameter's name
DYNAMIC_SHARED = f"extern __shared__ __align__({VECTOR_BYTES}) unsigned char shared[];"
"""Shared memory that the launch gives to blocks, where a function may not declare so much."""

_SHARED = "shared"


def print_program(program: LoopProgram, target: CudaTarget) -> CudaSource:
    """The CUDA C++ of a program whose outermost loops are over blocks, or repeat such loops.

    Raises: CodegenError for a program that breaks the loop IR's rules or needs more threads or
    shared memory than the target has.
    """
    printer = _Printer(program, target)
    printer.launch(program.body, {})
    code = "\n".join(printer.functions)
    return CudaSource(needed_by(code) + code, tuple(printer.launches), program.scratch_bytes)


class _Printer:
    def __init__(self, program: LoopProgram, target: CudaTarget) -> None:
        self.program, self.target = program, target
        self.memory = dependence.Memory.of(program)
        self.functions: list[str] = []
        self.launches: list[Launch] = []
        self._arguments = {b: n for n, b in enumerate((*program.operands, *program.results))}
        self._offsets = dict(program.scratch)
        self._written: dict[For, Launch] = {}

    def launch(self, statements: tuple[Stmt, ...], counters: Mapping[Var, int]) -> None:
        """The launches of statements that the host runs."""
        for stmt in statements:
            if not isinstance(stmt, For) or constant_extent(stmt) is None:
                raise CodegenError(
                    f"Expected a loop over blocks, or a number of repetitions, got "
                    f"`{headline(stmt)}` in kernel {self.program.name}"
                )
            if stmt.kind is LoopKind.BLOCK:
                self._launch(stmt, counters)
                continue
            for number in range(constant_extent(stmt)):
                self.launch(stmt.body, {**counters, stmt.var: number})

    def _launch(self, stmt: For, counters: Mapping[Var, int]) -> None:
        first = self._written.get(stmt)
        if first is None:
            first = self._written[stmt] = self._function(stmt, tuple(counters))
        if len(self.launches) == MAX_LAUNCHES:
            raise CodegenError(
                f"Expected at most {MAX_LAUNCHES} launches, kernel {self.program.name} needs more"
            )
        self.launches.append(replace(first, counters=tuple(counters.values())))

    def _function(self, stmt: For, counters: tuple[Var, ...]) -> Launch:
        """Write the function of one loop over blocks."""
        name = f"{self.program.name}_{len(self._written)}"
        threads = self._thread_count(stmt)
        places, parameters, buffers, scratch = self._parameters(stmt)
        wanted = self._shared_bytes(stmt)
        is_dynamic = wanted > self.target.static_shared_bytes
        barriers = Barriers(self.memory, whole_warps=threads % WARP == 0)
        writer = BlockWriter(
            Memory(places, CUDA), barriers, threads, _SHARED if is_dynamic else None
        )
        writer.lines.fresh(_SHARED)
        for place in places.values():  # their names are taken
            writer.lines.fresh(place.name)
        if scratch:
            parameters.append(f"char* {writer.lines.fresh(_SCRATCH)}")
        for var in counters:
            text = writer.lines.fresh(identifier(var.name))
            writer.bind(var, text)
            parameters.append(f"int {text}")
        block = writer.lines.fresh(identifier(stmt.var.name))
        writer.bind(stmt.var, block)
        writer.header.emit(f"const int {block} = blockIdx.x;")
        for buffer in scratch:
            kind = CUDA.element_type(buffer.dtype)
            writer.header.emit(
                f"{kind}* {places[buffer].name} = reinterpret_cast<{kind}*>"
                f"({_SCRATCH} + {self._offsets[buffer]});"
            )
        if is_dynamic:
            writer.header.emit(DYNAMIC_SHARED)
        writer.write(stmt.body)
        head = f'extern "C" __global__ void __launch_bounds__({threads})\n{name}('
        self.functions.append(
            "\n".join([head + ", ".join(parameters) + ") {", *writer.text(), "}", ""])
        )
        return Launch(
            name,
            constant_extent(stmt),
            threads,
            buffers,
            bool(scratch),
            shared_bytes=wanted if is_dynamic else 0,
        )

    def _shared_bytes(self, stmt: For) -> int:
        """Shared memory of a block."""
        total = sum(
            shared_size(s.buffer)
            for s in walk(stmt.body)
            if isinstance(s, Allocate) and s.buffer.scope == "shared"
        )
        if total > self.target.shared_bytes:
            raise CodegenError(
                f"Expected at most {self.target.shared_bytes} bytes of shared "
                f"memory, got {total} in kernel {self.program.name}"
            )
        return total

    def _thread_count(self, stmt: For) -> int:
        """Threads of a block: as many as the largest nest of loops over them needs."""
        most, folds = 1, False
        for inner in walk(stmt.body):
            if not isinstance(inner, For) or inner.kind is not LoopKind.THREAD:
                continue
            nest = thread_nest(inner)
            most = max(most, math.prod(s.var.extent for s in nest))
            folds = folds or folding(nest[-1]) is not None
        if folds:  # only whole warps exchange values
            most = -(-most // WARP) * WARP
        if most > self.target.threads:
            raise CodegenError(
                f"Expected at most {self.target.threads} threads, got {most} in "
                f"kernel {self.program.name}"
            )
        return most

    def _parameters(
        self, stmt: For
    ) -> tuple[dict[Buffer, Place], list[str], tuple[int, ...], list[Buffer]]:
        """Places and declarations of the buffers of a function, their positions, its scratch."""
        touched = accesses(stmt.body)
        used = dict.fromkeys(a.buffer for a in touched)
        written = {a.buffer for a in touched if a.writes}
        read = {a.buffer for a in touched if not a.writes}
        places, parameters, positions, scratch = {}, [], [], []
        for buffer in sorted(
            (b for b in used if b in self._arguments), key=self._arguments.__getitem__
        ):
            shared = any(
                other != buffer and self.memory.may_overlap(buffer, other) for other in written
            )
            # What threads write and others read after a barrier is not restricted to one name.
            free = not shared and not (buffer in written and buffer in read)
            kind = CUDA.element_type(buffer.dtype)
            parameters.append(
                f"{'' if buffer in written else 'const '}{kind}* "
                f"{'__restrict__ ' if free else ''}{buffer.name}"
            )
            positions.append(self._arguments[buffer])
            places[buffer] = Place(buffer.name, is_constant=buffer not in written and not shared)
        for buffer in used:
            if buffer in self._offsets:
                places[buffer] = Place(identifier(buffer.name))
                scratch.append(buffer)
        return places, parameters, tuple(positions), scratch
