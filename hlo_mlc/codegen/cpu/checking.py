"""Checks of every access, for kernels that are compiled with them (`HLO_MLC_CHECK=1`).

Two things are asked of an access: each index is within its extent in all lanes that take part, and
the bytes that are touched lie in the buffer, however the printer came by their address.  A check is
a call of a small function that does not return if the answer is no: it adds no blocks, so that the
code around it has the form that it always has.  What it calls then is the runtime's
(custom_calls/checked_run.cc), which ends the task and gives the kernel's caller the message.
"""

from __future__ import annotations

from collections.abc import Iterable

from hlo_mlc.codegen.cpu import indices, types
from hlo_mlc.codegen.cpu.block import Block
from hlo_mlc.codegen.cpu.function import Value
from hlo_mlc.codegen.cpu.places import Place
from hlo_mlc.codegen.cpu.program import Module
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr.dtypes import BF16, F16, F32, F64, DType

# Where the contexts of custom_calls/mlc_abi.h have `run_checked` and `fault`.
_RUN_CHECKED, _FAULT = 16, 24

# What results hold before they are written: signalling NaNs, and bytes that are rare elsewhere.
_POISONS = {F16: 0x7DA5, BF16: 0x7FA5, F32: 0x7FA5A5A5, F64: 0x7FF5A5A5A5A5A5A5}
_POISON_BYTE = 0xA5
# What arrays on the stack hold before, as scratch does: NaN, and an index out of all bounds.
_STACK_POISON = 0xFF


def check_place(
    writer: Writer, place: Place, what: str, conditions: Iterable[Value | None], depth: int
) -> None:
    """Check the indices of an access that is made in scope `depth`, where all conditions hold."""
    if not writer.module.checked:
        return
    for axis, (node, extent) in enumerate(zip(place.where, place.buffer.shape, strict=True)):
        position = writer.evaluate(node)
        if _is_below(position, extent):
            continue
        size = Value(str(extent), types.INDEX_TYPE)
        access = _access(
            writer, f"{what} of {_described(place)}: index {axis} is {{}}, its extent is {extent}"
        )
        _check(writer, access, position, size, conditions, depth)


def check_span(
    writer: Writer,
    place: Place,
    what: str,
    block: Block,
    address: str,
    size: int,
    condition: str | None = None,
) -> None:
    """Check that so many bytes from an address on lie in the buffer."""
    if not writer.module.checked:
        return
    offset, last = _offset(block, place, address, 0), place.storage.bytes - size
    bad = "true" if last < 0 else block.define("icmp ugt i64 ", offset, f", {last}")
    if condition is not None:
        bad = block.define("and i1 ", bad, ", ", condition)
    _call(writer, block, _span(writer, place, what, size), Value(offset, "i64"), bad)


def check_lanes(
    writer: Writer,
    place: Place,
    what: str,
    block: Block,
    addresses: str,
    active: str,
    condition: str | None = None,
) -> None:
    """Check the address of every lane that is `active`, as `check_span` does."""
    if not writer.module.checked:
        return
    width, size = writer.function.lane.width, place.dtype.bytes
    offsets, mask = _offset(block, place, addresses, width), types.vector("i1", width)
    last = types.spread(str(place.storage.bytes - size), "i64", width)
    bad = block.define(f"icmp ugt {types.vector('i64', width)} ", offsets, ", ", last, lanes=width)
    bad = block.define(f"and {mask} ", bad, ", ", active, lanes=width)
    if condition is not None:
        spread = writer.function.widen(Value(condition, "i1", 0, writer.function.depth), width)
        bad = block.define(f"and {mask} ", bad, ", ", spread, lanes=width)
    _call(writer, block, _span(writer, place, what, size), Value(offsets, "i64", width), bad)


def check_row(
    writer: Writer,
    place: Place,
    what: str,
    block: Block,
    first: str,
    active: str,
    condition: str | None = None,
    stride: int = 1,
) -> None:
    """The same of lanes that are `stride` elements apart, the first one at an address."""
    if not writer.module.checked:
        return
    width = writer.function.lane.width
    addresses = block.define(
        f"getelementptr {place.element}, ptr ",
        first,
        f", {types.vector('i64', width)} {types.iota('i64', width, stride)}",
        lanes=width,
    )
    check_lanes(writer, place, what, block, addresses, active, condition)


def poison(writer: Writer, pointer: str, size: int) -> None:
    """Fill an array on the stack, so that what is read before it is written shows."""
    writer.function.block.emit(
        "call void @llvm.memset.p0.i64(ptr ",
        pointer,
        f", i8 {_STACK_POISON - 256}, i64 {size}, i1 false)",
    )


def entry(module: Module, body: str) -> str:
    """The external entry of a kernel with checks, which leaves it to the runtime to run `body`."""
    program = module.program
    buffers = [(b, 0) for b in program.operands] + [(b, _poison(b.dtype)) for b in program.results]
    described = ", ".join(
        f"{{ ptr, i64, i64, i64 }} {{ ptr {_text(module, b.name)}, i64 {b.size}, "
        f"i64 {b.dtype.bytes}, i64 {pattern} }}"
        for b, pattern in buffers
    )
    count = len(buffers)
    table = module.constant(f"[{count} x {{ ptr, i64, i64, i64 }}] [{described}]")
    kernel = module.constant(
        f"{{ ptr, ptr, i64, i64, i64, ptr }} {{ ptr {body}, ptr {_text(module, program.name)}, "
        f"i64 {program.scratch_bytes}, i64 {len(program.operands)}, i64 {len(program.results)}, "
        f"ptr {table} }}"
    )
    return f"""\
define void @"{program.name}"(ptr %ctx, ptr %buffers, ptr %scratch) nounwind {{
  %slot = getelementptr i8, ptr %ctx, i64 {_RUN_CHECKED}
  %run = load ptr, ptr %slot, align 8
  call void %run(ptr %ctx, ptr {kernel}, ptr %buffers)
  ret void
}}"""


def _poison(dtype: DType) -> int:
    return _POISONS.get(dtype, int.from_bytes(bytes([_POISON_BYTE]) * dtype.bytes))


def _is_below(position: Value, extent: int) -> bool:
    return (
        types.is_literal(position.text) and not position.lanes and 0 <= int(position.text) < extent
    )


def _described(place: Place) -> str:
    """An element as the loops name it, with the type of its buffer."""
    where = ", ".join(map(str, place.where))
    sizes = ", ".join(map(str, place.buffer.shape))
    return f"{place.buffer.name}[{where}] ({place.buffer.scope} {place.dtype.name}[{sizes}])"


def _span(writer: Writer, place: Place, what: str, size: int) -> str:
    return _access(
        writer,
        f"{what} of {_described(place)}: {size} bytes from byte {{}} of {place.storage.bytes}",
    )


def _access(writer: Writer, text: str) -> str:
    """A constant that describes the current statement's access."""
    module, computed = writer.module, writer.computed
    name = "" if computed is None else computed.name
    if name and name not in text:
        text += f"; it is for {name}"
    return module.constant(
        f"{{ ptr, ptr }} {{ ptr {_text(module, text)}, ptr {_text(module, name)} }}"
    )


def _text(module: Module, text: str) -> str:
    data = text.encode() + b"\0"
    spelled = "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\{c:02X}" for c in data)
    return module.constant(f'[{len(data)} x i8] c"{spelled}"')


def _offset(block: Block, place: Place, addresses: str, lanes: int) -> str:
    """How far from the start of the buffer addresses are, in bytes."""
    numbers, pointers = types.vector("i64", lanes), types.vector("ptr", lanes)
    start = block.cast("ptrtoint", "ptr", place.storage.pointer, "i64")
    if lanes:
        start = block.spread("i64", start, lanes)
    at = block.cast("ptrtoint", pointers, addresses, numbers, lanes)
    return block.define(f"sub {numbers} ", at, ", ", start, lanes=lanes)


def _check(
    writer: Writer,
    access: str,
    position: Value,
    size: Value,
    conditions: Iterable[Value | None],
    depth: int,
) -> None:
    """Check an index in the lanes that are live and for which the conditions hold."""
    function = writer.function
    lane, lanes = function.lane, position.lanes
    given = [c for c in conditions if c is not None]
    key = (
        "checked",
        position.text,
        size.text,
        *(c.text for c in given),
        lane.mask if lanes else "",
    )
    if key in function.memo:
        return
    depth = max(depth, position.depth, size.depth)
    block = function.at(depth)
    if lanes:
        position = indices.resize(function, position, types.INDEX_TYPE)
    bad = block.define(
        f"icmp uge {position.type} ", position.text, ", ", function.widen(size, lanes), lanes=lanes
    )
    for condition in given:
        text = function.widen(condition, lanes) if lanes else writer.any_lane(condition, block)
        bad = block.define(f"and {types.vector('i1', lanes)} ", bad, ", ", text, lanes=lanes)
    if lanes and not lane.is_full:
        bad = block.define(f"and {types.vector('i1', lanes)} ", bad, ", ", lane.mask, lanes=lanes)
    _call(writer, block, access, position, bad)
    function.remember(key, Value("", "i1", 0, depth))


def _call(writer: Writer, block: Block, access: str, number: Value, bad: str) -> None:
    """Report the number, or that of the first lane, for which `bad` holds."""
    name = _checker(writer.module, number.lanes)
    block.emit(
        f"call void {name}(ptr ",
        writer.context(),
        f", ptr {access}, {number.type} ",
        number.text,
        f", {types.vector('i1', number.lanes)} ",
        bad,
        ")",
    )


def _checker(module: Module, lanes: int) -> str:
    """The function that looks at so many numbers."""
    name = f"@check{lanes or ''}"
    if lanes in module.root.checkers:
        return name
    module.root.checkers.add(lanes)
    mask, numbers = types.vector("i1", lanes), types.vector("i64", lanes)
    any_bad, number = "%bad", "%number"
    before: list[str] = []
    picked: list[str] = []
    if lanes:
        any_bad, number = "%any", "%first"
        before = [f"  %any = call i1 @llvm.vector.reduce.or.v{lanes}i1({mask} %bad)"]
        picked = [
            f"  %bits = bitcast {mask} %bad to i{lanes}",
            f"  %lane = call i{lanes} @llvm.cttz.i{lanes}(i{lanes} %bits, i1 true)",
            f"  %first = extractelement {numbers} %number, i{lanes} %lane",
        ]
    module.functions.append(
        "\n".join(
            [
                f"define internal void {name}(ptr %ctx, ptr %access, {numbers} %number, "
                f"{mask} %bad) noinline nounwind {{",
                "entry:",
                *before,
                f"  br i1 {any_bad}, label %fault, label %fine, !prof !2",
                "fine:",
                "  ret void",
                "fault:",
                *picked,
                f"  %slot = getelementptr i8, ptr %ctx, i64 {_FAULT}",
                "  %report = load ptr, ptr %slot, align 8",
                f"  call void %report(ptr %ctx, ptr %access, i64 {number})",
                "  unreachable",
                "}",
            ]
        )
    )
    return name
