"""Writing statements: loops, tasks, branches, stores and accumulation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

from hlo_mlc.codegen.cpu import checking, gaps, reading, types, writing
from hlo_mlc.codegen.cpu.accumulation import accumulate
from hlo_mlc.codegen.cpu.arrays import handed_on, has_spare_lanes
from hlo_mlc.codegen.cpu.block import Block, Kind
from hlo_mlc.codegen.cpu.function import Lane, Value
from hlo_mlc.codegen.cpu.interleave import interleave
from hlo_mlc.codegen.cpu.pairs import accumulate_pairs
from hlo_mlc.codegen.cpu.places import address, resolve
from hlo_mlc.codegen.cpu.program import Module, Storage, element_strides, has_loops, is_unrolled
from hlo_mlc.codegen.cpu.registers import Array
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr.core import Buffer, Const, Expr
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.loops.core import (
    STACK_BYTES,
    Accumulate,
    Allocate,
    Call,
    For,
    If,
    LoopKind,
    Prefetch,
    Stmt,
    Store,
    While,
)
from hlo_mlc.support.errors import CodegenError, CodeLimitError
from hlo_mlc.target.cpu import CACHE_LINE_BYTES

# Iterations from which on pointers that move along with a loop pay.
_LONG = 16

Statements = tuple[Stmt, ...]
_Guarded = TypeVar("_Guarded", Store, Accumulate)


def write_all(writer: Writer, statements: Statements) -> None:
    """Write statements one after the other."""
    for stmt in statements:
        if writer.length > writer.module.most_lines:
            raise CodeLimitError(writer.module.root.program.name, writer.module.most_lines)
        writer.computed = _computed(stmt)
        match stmt:
            case For():
                _write_for(writer, stmt)
            case Store():
                _write_guarded(writer, stmt.guard, _write_store, stmt)
            case Accumulate():
                _write_guarded(writer, stmt.guard, accumulate, stmt)
            case Prefetch():
                _write_prefetch(writer, stmt)
            case If():
                _write_if(writer, stmt)
            case While():
                _write_while(writer, stmt)
            case Allocate():
                _write_allocate(writer, stmt)
            case Call():
                _write_call(writer, stmt)


def _computed(stmt: Stmt) -> Buffer | None:
    """The buffer that a statement is there for, if it is one."""
    kind = type(stmt)
    if kind is Store:
        return stmt.buffer
    return stmt.buffers[0] if kind is Accumulate else None


# Loops


def _write_for(writer: Writer, loop: For) -> None:
    if is_unrolled(loop):
        _write_unrolled(writer, loop)
        return
    if loop.kind is LoopKind.VECTORIZE:
        _write_vector(writer, loop)
        return
    extent = writer.evaluate(loop.extent)
    write = _write_tasks if loop.kind is LoopKind.PARALLEL else _write_serial
    if not types.is_literal(extent.text):
        _write_maybe(writer, loop, extent, write)
    elif int(extent.text) > 0:
        write(writer, loop, extent)


def _write_unrolled(writer: Writer, loop: For) -> None:
    block, constants = writer.function.block, writer.function.constants
    written, label, count = block.instructions, block.label, _constant_extent(writer, loop)
    if accumulate_pairs(writer, loop, count):
        return
    between = _stored_between(writer, loop, count)
    writer.function.unrolled_in[loop.var] = len(writer.function.scopes)
    places, values, begins = [], [], []
    for number in range(count):
        constants[loop.var] = number
        begins.append(len(written))
        if between is None:
            write_all(writer, loop.body)
        else:
            values.append(writer.evaluate(between.value))
            places.append(resolve(writer, between.buffer, between.indices))
            checking.check_place(writer, places[-1], "store", (), writer.function.depth)
    constants.pop(loop.var, None)
    # No other unrolled loop, nor checks, which hold for all copies behind them.
    if count > 1 and _is_vector(loop.body) and not writer.module.checked:
        copies = [written[a:b] for a, b in itertools.pairwise((*begins, len(written)))]
        written[begins[0] :] = interleave(
            copies, writer.module.target.registers, writer.module.writes(loop.body), label
        )
    if between is not None:
        writing.write_between(writer, places, values)
        writer.function.lane = None


def _stored_between(writer: Writer, loop: For, count: int) -> Store | None:
    """What an unrolled loop stores, if its copies store vectors into each other's gaps; their lanes
    are then entered."""
    if not _is_vector(loop.body):
        return None
    (vector,) = loop.body
    live = _constant_extent(writer, vector)
    store = gaps.stored_by_copies(writer, loop, count, vector, live)
    if store is not None:
        _enter_vector(writer, vector, live)
        writer.computed = store.buffer
    return store


def _is_vector(body: Statements) -> bool:
    return len(body) == 1 and isinstance(body[0], For) and body[0].kind is LoopKind.VECTORIZE


def _constant_extent(writer: Writer, loop: For) -> int:
    if type(loop.extent) is Const:
        return loop.extent.value
    extent = writer.evaluate(loop.extent).text
    if not types.is_literal(extent):
        raise CodegenError(
            f"Expected a constant extent of the {loop.kind.value} loop over {loop.var}, got "
            f"{loop.extent}: loops of unknown extent are serial or parallel"
        )
    return int(extent)


def _write_maybe(
    writer: Writer, loop: For, extent: Value, write: Callable[[Writer, For, Value], None]
) -> None:
    """A loop that may have no iteration: nothing in it may be computed before that is known."""
    function = writer.function
    condition = function.block.define("icmp sgt i64 ", extent.text, ", 0")
    with function.scope(_block(writer)) as inner:
        start = inner.label
        write(writer, loop, extent)
    function.join(condition, [(start, inner)])


def _block(writer: Writer) -> Block:
    return Block(writer.function.names, writer.function.names.label())


def _write_serial(writer: Writer, loop: For, extent: Value) -> None:
    function = writer.function
    module = writer.module
    writes = module.writes(loop.body)
    kept = writes.intersection(map(module.alias_class, handed_on(loop.body)))
    known, outer = function.begin_loop(writes, kept), function.block
    counter = function.names.fresh()
    is_long = not types.is_literal(extent.text) or int(extent.text) >= _LONG
    with function.scope(
        _block(writer),
        leaf=not has_loops(loop.body),
        writes=writes,
        counter=counter if is_long else "",
    ) as inner:
        start = inner.label
        function.bindings[loop.var] = Value(counter, types.INDEX_TYPE, 0, function.depth)
        if kept:
            function.registers.enter(known, kept, outer, function.depth)
        write_all(writer, loop.body)
        handed = function.registers.leave(inner) if kept else []
        following = _advanced(inner, "i64", "add nuw nsw i64 ", counter, ", 1")
        done = inner.define("icmp eq i64 ", following, ", ", extent.text)
        pointers = [
            (name, first, _advanced(inner, "ptr", "getelementptr i8, ptr ", name, f", i64 {step}"))
            for (first, step), name in function.scopes[-1].moving.items()
        ]
    del function.bindings[loop.var]
    after = function.names.label()
    outer.jump(start)
    entered = outer.label
    outer.start(start)
    outer.name(counter, f"phi i64 [ 0, %{entered} ], [ ", following, f", %{inner.label} ]")
    for name, first, moved in pointers:
        outer.name(name, "phi ptr [ ", first, f", %{entered} ], [ ", moved, f", %{inner.label} ]")
    for first, one, last in handed:
        outer.name(
            one.text,
            f"phi {one.form.type} [ ",
            first.text,
            f", %{entered} ], [ ",
            last.text,
            f", %{inner.label} ]",
            lanes=one.form.lanes,
        )
    outer.instructions += inner.instructions
    outer.branch(done, after, start)
    outer.start(after)
    function.registers.put((last for *_, last in handed), function.block_depth(function.depth))


def _advanced(block: Block, kind: str, *pieces: str) -> str:
    """What moves along with a loop, at the next iteration.

    Frozen, so that LLVM does not know how it moves: it would look for other ways to count, which
    took a third of the time of assembling and made nothing faster.
    """
    return block.define(f"freeze {kind} ", block.define(*pieces))


def _write_vector(writer: Writer, loop: For) -> None:
    live = _constant_extent(writer, loop)
    if live <= 0:
        return
    _enter_vector(writer, loop, live)
    rest = loop.body
    while rest:
        count = gaps.stored_together(writer, loop, rest, live) if len(rest) > 1 else 1
        if count == 1:
            write_all(writer, rest[:1])
        else:
            writer.computed = rest[0].buffer
            values = [writer.evaluate(one.value) for one in rest[:count]]
            places = [resolve(writer, one.buffer, one.indices) for one in rest[:count]]
            for place in places:
                checking.check_place(writer, place, "store", (), writer.function.depth)
            writing.write_between(writer, places, values)
        rest = rest[count:]
    writer.function.lane = None


def _enter_vector(writer: Writer, loop: For, live: int) -> None:
    if writer.function.lane is not None:
        raise CodegenError(
            f"Expected one vector loop at a time, got the loop over {loop.var} inside that over "
            f"{writer.function.lane.var}"
        )
    writer.enter_lanes(Lane(loop.var, live, 1 << (live - 1).bit_length()))


def _write_while(writer: Writer, loop: While) -> None:
    """head: test; body; back to head."""
    function = writer.function
    function.begin_loop(writer.module.writes(loop.body))
    with function.scope(_block(writer)) as head:
        start = head.label
        condition = writer.evaluate(loop.condition)
        _require_uniform(writer, condition, loop.condition)
        with function.scope(_block(writer)) as body:
            body_start = body.label
            write_all(writer, loop.body)
    outer, after = function.block, function.names.label()
    outer.jump(start)
    outer.start(start)
    outer.instructions += head.instructions
    outer.branch(condition.text, body_start, after)
    outer.start(body_start)
    outer.instructions += body.instructions
    outer.jump(start)
    outer.start(after)


# Tasks


def _write_tasks(writer: Writer, loop: For, count: Value) -> None:
    """A parallel loop: its body becomes a function that the pool calls with the task's number."""
    function, module = writer.function, writer.module
    if function.lane is not None:
        raise CodegenError(
            f"Expected tasks around vector loops, got the parallel loop over {loop.var} inside "
            f"the vector loop over {function.lane.var}"
        )
    task = Writer(module, reading.load, writer)
    number = next(module.numbers)
    name = f"@task{number}"
    task.function.bindings[loop.var] = Value("%task", types.INDEX_TYPE)
    write_all(task, loop.body)
    function.names.others += finish(task, f"define internal void {name}(ptr %closure, i64 %task)")
    size = max(1, len(task.captured))
    closure = f"%closure{number}"
    function.prologue.name(closure, f"alloca [{size} x i64], align 8")
    block = function.block
    for slot, value in enumerate(task.captured):
        place = (
            block.define("getelementptr i64, ptr ", closure, f", i64 {slot}") if slot else closure
        )
        block.emit(f"store {value.type} ", value.text, ", ptr ", place, ", align 8")
    function.begin_loop(module.writes(loop.body))
    own = writer.context()
    parallel_for = block.define("load ptr, ptr ", own, ", align 8, !invariant.load !0")
    block.emit(
        "call void ",
        parallel_for,
        "(ptr ",
        own,
        f", ptr {name}, ptr ",
        closure,
        ", i64 ",
        count.text,
        ")",
    )


def finish(writer: Writer, header: str) -> int:
    """End a function and add it to the module; gives its number of lines."""
    function = writer.function
    function.registers.flush(function.block)
    lines = [f"{header} nounwind {{", "entry:", *function.prologue.lines(), *function.block.lines()]
    if writer.streams and writer.module.target.is_x86:
        lines.append("  call void @llvm.x86.sse.sfence()")
    lines += ["  ret void", "}"]
    writer.module.functions.append("\n".join(lines))
    return len(lines)


def _write_call(writer: Writer, stmt: Call) -> None:
    """Run another program: an internal function of the same form as a kernel's entry."""
    module, function = writer.module, writer.function
    if writer.parent is not None or function.lane is not None:
        raise CodegenError(f"Expected the call of {stmt.program.name} outside of tasks and vectors")
    name = f'@"{stmt.program.name}"'
    if stmt.program not in module.root.called:
        called = Writer(Module(stmt.program, module.target, module.root), reading.load)
        write_all(called, stmt.program.body)
        function.names.others += finish(
            called, f"define internal void {name}(ptr %ctx, ptr %buffers, ptr %scratch)"
        )
    pointers = f"%arguments{next(module.numbers)}"
    function.prologue.name(pointers, f"alloca [{len(stmt.buffers)} x ptr], align 8")
    block = function.block
    for slot, (buffer, part) in enumerate(stmt.parts):
        place = (
            block.define("getelementptr ptr, ptr ", pointers, f", i64 {slot}") if slot else pointers
        )
        pointer = writer.storage(buffer).pointer
        if offset := buffer.dtype.bytes * buffer.offset_of(part):
            pointer = block.define("getelementptr i8, ptr ", pointer, f", i64 {offset}")
        block.emit("store ptr ", pointer, ", ptr ", place, ", align 8")
    block.emit(f"call void {name}(ptr ", writer.context(), ", ptr ", pointers, ", ptr null)")
    function.forget(module.results_of(stmt))


# Branches


def _write_if(writer: Writer, branch: If) -> None:
    if not branch.then and not branch.otherwise:
        return
    condition = writer.evaluate(branch.condition)
    _require_uniform(writer, condition, branch.condition)
    if types.is_literal(condition.text):
        write_all(writer, branch.then if condition.text == "true" else branch.otherwise)
        return
    arms = []
    for statements in (branch.then, branch.otherwise):
        if statements:
            with writer.function.scope(_block(writer), branch=True) as inner:
                start = inner.label
                write_all(writer, statements)
            arms.append((start, inner))
        else:
            arms.append(None)
    if arms[0] is None:
        condition = writer.op("not", BOOL, (condition,))
        arms.reverse()
    writer.function.join(condition.text, [arm for arm in arms if arm is not None])


def _require_uniform(writer: Writer, condition: Value, node: Expr) -> None:
    if condition.lanes:
        raise CodegenError(
            f"Expected a condition that is the same in all lanes of the vector loop over "
            f"{writer.function.lane.var}, got {node}: guard the stores instead"
        )


def _write_guarded(
    writer: Writer, guard: Expr | None, write: Callable[[Writer, _Guarded], None], stmt: _Guarded
) -> None:
    """Write a statement for where the guard holds: behind a branch, or for those lanes only."""
    if guard is None:
        write(writer, stmt)
        return
    function = writer.function
    condition = writer.evaluate(guard)
    if types.is_literal(condition.text):
        if condition.text == "true":
            write(writer, stmt)
    elif condition.lanes:
        outer = function.mask, function.guard
        function.mask, function.guard = condition, guard
        with function.scope():
            write(writer, stmt)
        function.mask, function.guard = outer
    else:
        with function.where(condition.text):
            write(writer, stmt)


# Memory


def _write_allocate(writer: Writer, stmt: Allocate) -> None:
    buffer, function = stmt.buffer, writer.function
    if buffer.scope not in ("stack", "register"):
        raise CodegenError(f"Expected a stack or register buffer to allocate, got {buffer!r}")
    lanes = function.lane.width if function.lane is not None else 0
    rows = element_strides(buffer)[0] * buffer.shape[0] if buffer.shape else 1
    size = rows * buffer.dtype.bytes * (lanes or 1)
    module, is_register = writer.module, buffer.scope == "register"
    pointer = _stack(writer, buffer, size) if is_register else _room(writer, buffer, size)
    writer.allocate(
        buffer,
        Storage(
            pointer,
            64,
            module.alias_class(buffer),
            size,
            "" if is_register else module.tags(buffer),
            lanes,
            size if is_register else 0,
            not lanes and has_spare_lanes(buffer, stmt.body),
            Array(pointer, module.alias_class(buffer)) if is_register else None,
        ),
    )
    if module.checked:
        checking.poison(writer, pointer, size)
    writer.stack_depth += not is_register
    write_all(writer, stmt.body)
    writer.stack_depth -= not is_register
    function.forget((module.alias_class(buffer),))
    if is_register:
        function.registers.drop(writer.storage(buffer).array)
    writer.allocate(buffer, None)


def _room(writer: Writer, buffer: Buffer, size: int) -> str:
    """So many bytes that buffers with as many others around them take one after the other."""
    while len(writer.stack) <= writer.stack_depth:
        writer.stack.append((0, ""))
    room, pointer = writer.stack[writer.stack_depth]
    if room < size:
        pointer = _stack(writer, buffer, size)
        writer.stack[writer.stack_depth] = size, pointer
    return pointer


def _stack(writer: Writer, buffer: Buffer, size: int) -> str:
    """So many bytes of the function's own."""
    writer.stack_bytes += size
    if writer.stack_bytes > STACK_BYTES:
        raise CodegenError(
            f"Expected at most {STACK_BYTES} bytes on the stack of kernel "
            f"{writer.module.program.name!r}, got {writer.stack_bytes} with {buffer!r}: put large "
            f"buffers into scratch"
        )
    return writer.function.prepare(f"alloca [{size} x i8], align 64")


def _write_store(writer: Writer, stmt: Store) -> None:
    value = writer.evaluate(stmt.value)
    writing.write(writer, resolve(writer, stmt.buffer, stmt.indices), value, stmt.streaming)


def _write_prefetch(writer: Writer, stmt: Prefetch) -> None:
    place = resolve(writer, stmt.buffer, stmt.indices)
    # Vectors that share a line with the one before need not ask for it again.
    if writer.function.lane is not None and (
        not place.is_contiguous or place.constant % CACHE_LINE_BYTES
    ):
        return
    block = writer.function.block
    ahead = address(writer, place, block, place.constant + stmt.ahead * place.dtype.bytes)
    block.emit("call void @llvm.prefetch.p0(ptr ", ahead, ", i32 0, i32 3, i32 1)", kind=Kind.HINT)
