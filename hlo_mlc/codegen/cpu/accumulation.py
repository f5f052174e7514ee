"""Writing accumulation: lane by lane, across lanes by halves, or in order where lanes may meet."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.codegen.cpu import memory, reading, types, writing
from hlo_mlc.codegen.cpu.checking import check_lanes, check_place
from hlo_mlc.codegen.cpu.function import Value
from hlo_mlc.codegen.cpu.places import Place, resolve, scattered
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr.core import Apply
from hlo_mlc.expr.dtypes import BOOL, F32, F64
from hlo_mlc.loops.core import Accumulate
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import CodegenError

# Combiners of conditions that a processor asks about all lanes at once.
_OF_BITS = ("and", "or")


def accumulate(writer: Writer, stmt: Accumulate) -> None:
    """`buffers[indices] = combiner(buffers[indices], terms)` in the lanes that are switched on.

    Raises: CodegenError where lanes share some of the places, but not all of them, or tasks may.
    """
    if stmt.atomic:
        raise CodegenError(
            f"Expected tasks that update elements of their own, got `{headline(stmt)}`"
        )
    lane = writer.function.lane
    places = [resolve(writer, b, stmt.indices) for b in stmt.buffers]
    shared = lane is not None and [place.is_uniform for place in places]
    if not shared or True not in shared:
        if any([place.varying for place in places]):
            _in_order(writer, stmt, places)
        else:
            _lane_by_lane(writer, stmt, places)
    elif all(shared):
        _across_lanes(writer, stmt, places)
    else:
        raise CodegenError(
            f"Expected the lanes of the vector loop over {lane.var} to accumulate into places of "
            f"one kind, got one place for all and one for each in {stmt.buffers}"
        )


def _lane_by_lane(writer: Writer, stmt: Accumulate, places: Sequence[Place]) -> None:
    mask = writer.function.mask
    old = [reading.read(writer, place, mask) for place in places]
    for place, value in zip(places, _updated(writer, stmt, old), strict=True):
        writing.write(writer, place, value)


def _updated(writer: Writer, stmt: Accumulate, old: Sequence[Value]) -> list[Value]:
    """The combiner's results; a product added to a float sum is rounded together with the sum."""
    if stmt.combiner.name == "add" and writer.module.target.has_fma:
        term = writer.legalized(stmt.terms[0])
        if type(term) is Apply and term.op == "mul" and term.dtype in (F32, F64):
            x, y = term.args
            return [writer.op("fma", term.dtype, (writer.value(x), writer.value(y), old[0]))]
    return writer.combine(stmt.combiner, old, [writer.evaluate(t) for t in stmt.terms])


# All lanes into one place


def _across_lanes(writer: Writer, stmt: Accumulate, places: Sequence[Place]) -> None:
    function, lane = writer.function, writer.function.lane
    mask, identity = function.mask, stmt.combiner.identity
    terms = [_spread(writer, writer.evaluate(t), lane.width) for t in stmt.terms]
    if mask is None:
        _add_once(writer, stmt, places, _folded(writer, stmt, terms, lane.live), None)
        return
    if identity is not None:
        terms = [
            _select(writer, mask, term, _spread(writer, writer.value(neutral), lane.width))
            for term, neutral in zip(terms, identity, strict=True)
        ]
        total, any_live = _folded(writer, stmt, terms, lane.live), None
    else:
        total, any_live = _folded_under(writer, stmt, terms, mask)
    function.mask = None
    if all(place.is_own_element for place in places):
        _add_once(writer, stmt, places, total, any_live)
    else:  # without any lane, there may be no such place
        with function.where(writer.any_lane(mask, function.block)):
            _add_once(writer, stmt, places, total, None)
    function.mask = mask


def _add_once(
    writer: Writer,
    stmt: Accumulate,
    places: Sequence[Place],
    total: Sequence[Value],
    condition: Value | None,
) -> None:
    """Add the fold of the lanes to memory, unless no lane was on."""
    old = [reading.read(writer, place) for place in places]
    new = writer.combine(stmt.combiner, old, total)
    for place, before, value in zip(places, old, new, strict=True):
        kept = value if condition is None else _select(writer, condition, value, before)
        writing.write(writer, place, kept)


def _folded(writer: Writer, stmt: Accumulate, terms: list[Value], live: int) -> list[Value]:
    """The first `live` lanes combined: lane l with lane l + width/2, and so on; those of conditions
    at once, as the bits of a number."""
    width, combiner = terms[0].lanes, stmt.combiner
    if combiner.name in _OF_BITS and terms[0].element == "i1":
        term, neutral = terms[0], str(combiner.name == "and").lower()
        if live < width:
            mask, others = (
                Value(text, "i1", width)
                for text in (types.prefix_mask(live, width), types.spread(neutral, "i1", width))
            )
            term = _select(writer, mask, term, others)
        text = writer.function.block.define(
            f"call i1 @llvm.vector.reduce.{combiner.name}.v{width}i1({term.type} ", term.text, ")"
        )
        return [term._replace(text=text, lanes=0)]
    while width:
        half = width // 2
        paired = live - half  # lanes of the lower half that have a live partner
        low = [_lanes(writer, t, 0, half) for t in terms]
        if paired > 0:
            high = [_lanes(writer, t, half, half) for t in terms]
            both = writer.combine(stmt.combiner, low, high)
            if paired < half:
                mask = Value(types.prefix_mask(paired, half), "i1", half)
                both = [_select(writer, mask, b, x) for b, x in zip(both, low, strict=True)]
            low = both
        terms, live, width = low, min(live, half), half if half > 1 else 0
    return terms


def _folded_under(
    writer: Writer, stmt: Accumulate, terms: list[Value], mask: Value
) -> tuple[list[Value], Value]:
    """The lanes that are on, combined in the same order; and whether any lane was on."""
    lane, width = writer.function.lane, terms[0].lanes
    live = _spread(writer, mask, width)
    if not lane.is_full:
        live = writer.op("and", BOOL, (live, Value(lane.mask, "i1", width)))
    while width:
        half = width // 2
        low, high = ([_lanes(writer, t, start, half) for t in terms] for start in (0, half))
        low_live, high_live = (_lanes(writer, live, start, half) for start in (0, half))
        both = writer.combine(stmt.combiner, low, high)
        terms = [
            _select(writer, low_live, _select(writer, high_live, b, x), y)
            for b, x, y in zip(both, low, high, strict=True)
        ]
        live = writer.op("or", BOOL, (low_live, high_live))
        width = half if half > 1 else 0
    return terms, live


def _spread(writer: Writer, value: Value, lanes: int) -> Value:
    """A value as a vector of `lanes`."""
    return value._replace(text=writer.function.widen(value, lanes), lanes=lanes)


def _lanes(writer: Writer, value: Value, start: int, count: int) -> Value:
    """Lanes start, start + 1, …; one lane is a scalar."""
    block = writer.function.block
    if count == 1:
        text = block.define(f"extractelement {value.type} ", value.text, f", i64 {start}")
    else:
        lanes = range(start, start + count)
        text = block.shuffle(value.element, value.lanes, value.text, "poison", lanes)
    return value._replace(text=text, lanes=count if count > 1 else 0, depth=writer.function.depth)


def _select(writer: Writer, condition: Value, chosen: Value, other: Value) -> Value:
    function = writer.function
    lanes = max(condition.lanes, chosen.lanes, other.lanes)
    whole = types.vector(chosen.element, lanes)
    picked, on_true, on_false = (function.widen(v, lanes) for v in (condition, chosen, other))
    text = function.block.select(whole, picked, on_true, on_false, lanes)
    return chosen._replace(text=text, lanes=lanes, depth=function.depth)


# Lanes that may be at the same place


def _in_order(writer: Writer, stmt: Accumulate, places: Sequence[Place]) -> None:
    """One lane after the other: two of them may name the same element."""
    function, lane = writer.function, writer.function.lane
    mask = function.mask
    terms = [_spread(writer, writer.evaluate(t), lane.width) for t in stmt.terms]
    for place in places:
        memory.release(writer, place)
    addresses = [
        Value(scattered(writer, place, None, function.depth), "ptr", lane.width) for place in places
    ]
    conditions = None if mask is None else _spread(writer, mask, lane.width)
    for place, where in zip(places, addresses, strict=True):
        check_place(writer, place, "accumulation", (mask,), function.depth)
        active = lane.mask if conditions is None else conditions.text
        check_lanes(writer, place, "accumulation", function.block, where.text, active)
    for number in range(lane.live):
        if conditions is None:
            _add_lane(writer, stmt, places, addresses, terms, number)
            continue
        with function.where(
            function.block.define(
                f"extractelement {conditions.type} ", conditions.text, f", i64 {number}"
            )
        ):
            _add_lane(writer, stmt, places, addresses, terms, number)
    function.forget(place.storage.alias_class for place in places)


def _add_lane(
    writer: Writer,
    stmt: Accumulate,
    places: Sequence[Place],
    addresses: Sequence[Value],
    terms: Sequence[Value],
    number: int,
) -> None:
    function = writer.function
    block = function.block
    pointers = [_lanes(writer, a, number, 1).text for a in addresses]
    old = [
        Value(
            memory.read_element(block, place, pointer),
            types.register_type(place.dtype),
            0,
            function.depth,
        )
        for place, pointer in zip(places, pointers, strict=True)
    ]
    new = writer.combine(stmt.combiner, old, [_lanes(writer, t, number, 1) for t in terms])
    for place, pointer, value in zip(places, pointers, new, strict=True):
        memory.write_element(block, place, pointer, value.text)
