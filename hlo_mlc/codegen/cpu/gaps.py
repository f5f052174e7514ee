"""Vectors that are stored into each other's gaps, such as the parts of complex numbers: together
they fill whole lines of memory, and are stored so (`writing.write_between`)."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.codegen.cpu.program import Module
from hlo_mlc.codegen.cpu.values import Writer
from hlo_mlc.expr.core import Buffer, loads
from hlo_mlc.loops.core import For, Stmt, Store
from hlo_mlc.target.cpu import WIDEST_STEP


def stored_by_copies(writer: Writer, loop: For, count: int, vector: For, live: int) -> Store | None:
    """What a vector loop of so many live lanes stores, if the `count` copies of it that an unrolled
    loop makes fill each other's gaps, by which nothing changes that they read."""
    module = writer.module
    if (
        not 1 < count <= WIDEST_STEP
        or len(vector.body) != 1  # none where no lane is within the array
        or live < count
        or not _may_fill(writer, vector.body, live)
    ):
        return None
    (store,) = vector.body
    apart = dict(module.linear(store.buffer, store.indices)[0])
    if (
        apart.pop(loop.var, 0) != 1
        or apart.pop(vector.var, 0) != count
        or any(not a.free.isdisjoint((loop.var, vector.var)) for a in apart)
        or any(
            _meets(module, one.source, store.buffer)
            and (one.source, one.indices) != (store.buffer, store.indices)
            for e in (*store.indices, store.value)
            for one in loads(e)
        )
    ):
        return None
    return store


def stored_together(writer: Writer, loop: For, body: Sequence[Stmt], live: int) -> int:
    """How many of these statements of a vector loop of so many live lanes fill each other's gaps,
    by which nothing changes that they read: 2, or 1."""
    pair, module = body[:2], writer.module
    if len(pair) < 2 or live < 2 or not _may_fill(writer, pair, live):
        return 1
    if any(
        _meets(module, one.source, pair[0].buffer)
        for store in pair
        for e in (*store.indices, store.value)
        for one in loads(e)
    ):
        return 1
    (terms, start), (others, following) = (module.linear(one.buffer, one.indices) for one in pair)
    apart = dict(terms)
    fills = (
        apart == dict(others)
        and following - start == 1
        and apart.pop(loop.var, 0) == 2
        and all(atom.free.isdisjoint((loop.var,)) for atom in apart)
    )
    return 2 if fills else 1


def _may_fill(writer: Writer, body: Sequence[Stmt], live: int) -> bool:
    """Whether statements store all lanes, a power of two of them, to one array in memory."""
    if (
        live & (live - 1)
        or writer.function.mask is not None
        or not all(isinstance(one, Store) and one.guard is None for one in body)
    ):
        return False
    buffer = body[0].buffer
    if buffer.scope == "register" or any(one.buffer is not buffer for one in body):
        return False
    storage = writer.storage(buffer)
    return not storage.private_lanes and storage.writable is not None


def _meets(module: Module, one: Buffer, other: Buffer) -> bool:
    return module.alias_class(one) == module.alias_class(other)
