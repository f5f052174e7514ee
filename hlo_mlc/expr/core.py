"""Scalar expressions: an acyclic graph of hash-consed nodes.

Structurally equal expressions are the same object, so equality is identity, sharing is free
(every shared node is a `let`), and traversals remember what they have seen.  Build expressions
with `hlo_mlc.expr.build`, which simplifies; the classes here only intern.
"""

from __future__ import annotations

import functools
import gc
import math
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from hlo_mlc.expr.dtypes import BOOL, DType
from hlo_mlc.expr.ops import OPS
from hlo_mlc.support.locks import process_lock

_interned: dict[tuple, _Interned] = {}
_buffers: weakref.WeakValueDictionary[tuple, Buffer] = weakref.WeakValueDictionary()
_lock = process_lock()
_dead: list[_Interned] = []  # references to what nobody has any longer
# So many are forgotten at once: one at a time, as `weakref.WeakValueDictionary` does it, took 6 %
# of first calls.
_MANY_DEAD = 1 << 12


class _Interned(weakref.ref):
    """A reference to an expression, with its key."""

    __slots__ = ("key",)
    key: tuple


def _operator(op: str, reflected: bool = False) -> Callable[..., Expr]:
    def operate(self: Expr, *other: Expr | float) -> Expr:
        return Expr.operation(op, *((*other, self) if reflected else (self, *other)))

    return operate


class Expr:
    """A scalar value; `dtype` is its type, `free` the variables that it depends on, and `children`
    the expressions that it is made of, in a fixed order.

    Arithmetic is written as in Python: `-x * y + 1`, `~(mask | bit) << 3`, of indices also `i // 8`
    and `i % 8`. Each operator is one op of expr/ops.py, and numbers take the other side's type.
    """

    __slots__ = (
        "__weakref__",
        "_affine",
        "_bounds",
        "_loads",
        "_text",
        "children",
        "dtype",
        "free",
    )
    dtype: DType
    free: frozenset[Var]
    children: tuple[Expr, ...]
    operation: ClassVar[Callable[..., Expr]]  # build.operation, which simplifies what it builds

    __add__, __radd__ = _operator("add"), _operator("add", reflected=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", reflected=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", reflected=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", reflected=True)
    __floordiv__, __mod__, __neg__ = _operator("floordiv"), _operator("floormod"), _operator("neg")
    __and__, __or__, __xor__, __invert__ = map(_operator, ("and", "or", "xor", "not"))
    __lshift__, __rshift__ = _operator("shl"), _operator("shr")

    def __repr__(self) -> str:
        return text(self)

    def __reduce__(self) -> str | tuple:
        raise TypeError("expressions are interned per process; write them as text instead")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Buffer:
    """A named block of memory: `shape` elements of `dtype`, row-major.  Equal ones are the same
    object, as of expressions.

    scope: "operand" (read-only unless aliased) | "result" | "scratch" (the kernel's arena, shared
    by tasks) | "stack" (private to a task) | "register" (private, constant-indexed once unrolled) |
    "shared" (of a block of threads) | "thread" (its first axes are the threads of a block, each of
    which touches its own part only, so that parts can be registers).
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    scope: str = "scratch"

    def __new__(
        cls, name: str, dtype: DType, shape: tuple[int, ...], scope: str = "scratch"
    ) -> Buffer:
        with _lock:
            return _buffers.setdefault((name, dtype, shape, scope), object.__new__(cls))

    def __reduce__(self) -> str | tuple:
        return Buffer, (self.name, self.dtype, self.shape, self.scope)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.bytes

    @property
    def element_strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis."""
        return _element_strides(self.shape)

    def offset_of(self, first: tuple[int, ...]) -> int:
        """Elements before the part with these first indices."""
        return sum(n * stride for n, stride in zip(first, self.element_strides, strict=False))

    def __repr__(self) -> str:
        return f"{self.name}: {'x'.join([*map(str, self.shape), self.dtype.name])} {self.scope}"


@functools.lru_cache(1024)
def _element_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


class Const(Expr):
    """A literal.  Floats differ by their bits, so -0 and 0 are two constants and NaN is one."""

    __slots__ = ("value",)
    value: int | float | bool

    def __new__(cls, value: int | float | bool, dtype: DType) -> Const:
        bits = struct.pack("<d", value) if isinstance(value, float) else value
        return _intern(cls, (cls, bits, dtype), _init_const, value, dtype)


class Var(Expr):
    """A variable; an index variable runs over [0, extent)."""

    __slots__ = ("extent", "name")
    name: str
    extent: int | None

    def __new__(cls, name: str, dtype: DType, extent: int | None = None) -> Var:
        return _intern(cls, (cls, name, dtype, extent), _init_var, name, dtype, extent)


class Apply(Expr):
    """`op(args)`, `op` being a row of expr/ops.py."""

    __slots__ = ("args", "op")
    op: str
    args: tuple[Expr, ...]

    def __new__(cls, op: str, args: tuple[Expr, ...], dtype: DType) -> Apply:
        key = (cls, op, args, dtype)
        reference = _interned.get(key)
        if reference is not None and (found := reference()) is not None:
            return found
        return _made(cls, key, _init_apply, op, args, dtype)


class Load(Expr):
    """`source[indices]`, or `default` where `guard` is false (then memory is not touched)."""

    __slots__ = ("default", "guard", "indices", "source")
    source: Buffer
    indices: tuple[Expr, ...]
    guard: Expr | None
    default: Expr | None

    def __new__(
        cls,
        source: Buffer,
        indices: tuple[Expr, ...],
        guard: Expr | None = None,
        default: Expr | None = None,
    ) -> Load:
        assert len(indices) == len(source.shape), (source, indices)
        assert guard is None or (guard.dtype is BOOL and default is not None)
        key = (cls, source, indices, guard, default)
        return _intern(cls, key, _init_load, source, indices, guard, default)


def _intern(cls: type, key: tuple, init, *fields) -> Expr:
    reference = _interned.get(key)
    found = None if reference is None else reference()
    return _made(cls, key, init, *fields) if found is None else found


def _made(cls: type, key: tuple, init, *fields) -> Expr:
    """The expression of a key that nobody had a moment ago."""
    with _lock:
        reference = _interned.get(key)
        found = None if reference is None else reference()
        if found is None:
            if len(_dead) >= _MANY_DEAD:
                _forget_dead()
            found = object.__new__(cls)
            found._text = found._affine = found._bounds = found._loads = None
            init(found, *fields)
            reference = _Interned(found, _dead.append)
            reference.key = key
            _interned[key] = reference
        return found


def _forget_dead() -> None:
    """Forgets the keys of expressions that nobody has, and those of what is in these alone."""
    while _dead:
        reference = _dead.pop()
        if _interned.get(reference.key) is reference:
            del _interned[reference.key]


def _collected(phase: str, info: Mapping[str, int]) -> None:
    """Where Python gives back all that it can, so does this; in any thread, at any time."""
    if phase == "stop" and info["generation"] == 2 and _lock.acquire(blocking=False):
        try:
            _forget_dead()
        finally:
            _lock.release()


gc.callbacks.append(_collected)


def _init_const(node: Const, value, dtype: DType) -> None:
    node.value, node.dtype, node.free, node._loads = value, dtype, _NO_VARIABLES, ()
    node.children = ()


def _init_var(node: Var, name: str, dtype: DType, extent) -> None:
    node.name, node.dtype, node.extent, node.free = name, dtype, extent, frozenset((node,))
    node.children = node._loads = ()


def _init_apply(node: Apply, op: str, args: tuple[Expr, ...], dtype: DType) -> None:
    node.op, node.args, node.children, node.dtype = op, args, args, dtype
    node.free = _union(args)
    node._loads = _few_loads(args)


def _init_load(node: Load, source: Buffer, indices, guard, default) -> None:
    node.source, node.indices, node.guard, node.default = source, indices, guard, default
    node.children = indices if guard is None else (*indices, guard, default)
    node.dtype = source.dtype
    node.free = _union(node.children)


# Expressions remember so many loads from the beginning; what more have, whoever asks finds out.
# All prefixes of a long sum would take memory with the square of its length.
_FEW_LOADS = 4


def _few_loads(args: tuple[Expr, ...]) -> tuple[Load, ...] | None:
    """The loads in an operation on `args`, where they are few."""
    found: tuple[Load, ...] = ()
    for arg in args:
        inside = arg._loads
        if inside is None:
            if not isinstance(arg, Load) or _few_loads(arg.children) != ():
                return None
            inside = (arg,)
        if not found:
            found = inside
        elif inside and inside is not found:
            found = tuple(dict.fromkeys(found + inside))
            if len(found) > _FEW_LOADS:
                return None
    return found


_NO_VARIABLES: frozenset[Var] = frozenset()


def _union(nodes: tuple[Expr, ...]) -> frozenset[Var]:
    free = nodes[0].free if nodes else _NO_VARIABLES
    for node in nodes[1:]:
        if not node.free <= free:
            free = free | node.free
    return free


def walk(*roots: Expr, into: Callable[[Expr], bool] | None = None) -> Iterator[Expr]:
    """Every distinct node below `roots`, operands before users; without the operands, and what is
    below them, that `into` refuses."""
    seen: set[Expr] = set()
    stack: list[Expr | None] = [*reversed(roots)]
    while stack:
        node = stack.pop()
        if node is None:  # what is below the next one has been
            yield stack.pop()
        elif node not in seen:
            seen.add(node)
            below = node.children
            if not below:  # as more than half of all
                yield node
                continue
            stack += (node, None)
            stack += [
                child
                for child in reversed(below)
                if child not in seen and (into is None or into(child))
            ]


def loads(node: Expr) -> tuple[Load, ...]:
    """The distinct loads in `node`, those inside indices included, in order of evaluation."""
    if node._loads is None:
        _remember_loads(node)
        if node._loads is None:
            node._loads = tuple(loads_in(node))
    return node._loads


# What is below an expression remembers so many where somebody asks: sums that share most of their
# terms, as the results of a transform, are gone through once.
_SOME_LOADS = 128


def _remember_loads(root: Expr) -> None:
    """Finds the loads in `root`, and in all that is below it, where they are not too many."""
    many: set[Expr] = set()
    known: dict[Expr, tuple[Load, ...]] = {}  # of loads, which do not refer to themselves
    stack = [root]
    while stack:
        node = stack[-1]
        children = node.children
        waiting = [c for c in children if c._loads is None and c not in known and c not in many]
        if waiting:
            waiting.reverse()
            stack += waiting
            continue
        stack.pop()
        if node._loads is not None or node in known or node in many:
            continue
        found: dict[Load, None] = {}
        if many.isdisjoint(children):
            for child in children:
                found |= dict.fromkeys(known[child] if child._loads is None else child._loads)
        if len(found) > _SOME_LOADS or not many.isdisjoint(children):
            many.add(node)
        elif isinstance(node, Load):
            known[node] = (*found, node)
        else:
            node._loads = tuple(found)


def loads_in(*roots: Expr) -> Iterator[Load]:
    """The same of several expressions, each once: as `walk` would come to them, but past all whose
    loads are known."""
    seen: set[Expr] = set()
    stack: list[Expr | None] = [*reversed(roots)]
    while stack:
        node = stack.pop()
        if node is None:
            yield stack.pop()
        elif node not in seen:
            seen.add(node)
            known = node._loads
            if known is not None:
                fresh = [load for load in known if load is node or load not in seen]
                seen.update(fresh)
                yield from fresh
                continue
            if isinstance(node, Load):
                stack += (node, None)
            stack += [c for c in reversed(node.children) if c._loads != () and c not in seen]


# In one line of text a shared expression of more nodes than this is written once and named:
# written at each use, thirty operations that use their operand twice would take gigabytes.
LONG = 32


def text(node: Expr) -> str:
    """One-line infix text; equal for equal expressions, so it serves as a canonical key."""
    if node._text is None:
        lets, (body,) = spell_shared((node,), LONG, LONG)
        node._text = f"let {'; '.join(lets)} in {body}" if lets else body
    return node._text


def uses_of(roots: Iterable[Expr], nodes: Iterable[Expr]) -> Counter[Expr]:
    """How often each of `nodes`, all that is below `roots`, is used by others, or is a root."""
    return Counter(chain(roots, chain.from_iterable(node.children for node in nodes)))


def spell_shared(
    roots: tuple[Expr, ...], small: int, small_index: int
) -> tuple[list[str], tuple[str, ...]]:
    """The lines `%0 = …` for what is used several times, and the texts of `roots` that use them.

    Shared expressions of at most `small` nodes, or `small_index` in index arithmetic, are written
    again instead.
    """
    order = list(walk(*roots))
    uses = uses_of(roots, order)
    texts: dict[Expr, str] = {}
    sizes: dict[Expr, int] = {}
    lets: list[str] = []
    for node in order:
        spelled = spell(node, texts.__getitem__)
        below = node.children
        size = 1 + sum([sizes[child] for child in below]) if below else 1
        if (
            size > 1
            and uses[node] > 1
            and size > (small_index if node.dtype.name == "index" else small)
        ):
            name = f"%{len(lets)}"
            lets.append(f"{name} = {spelled}")
            spelled, size = name, 1
        texts[node], sizes[node] = spelled, size
    return lets, tuple(texts[root] for root in roots)


def spell(node: Expr, part: Callable[[Expr], str]) -> str:
    """The text of `node`, without parentheses around it; `part` gives that of each child."""
    match node:
        case Const():
            return str(node.value) if node.dtype.name == "index" else f"{node.value}:{node.dtype}"
        case Var():
            return node.name
        case Load():
            body = f"{node.source.name}[{', '.join(map(part, node.indices))}]"
            if node.guard is None:
                return body
            guard, default = (_operand(None, e, part) for e in (node.guard, node.default))
            return f"{body} if {guard} else {default}"
        case Apply():
            infix = OPS[node.op].infix
            if infix:
                left, right = (_operand(node, a, part) for a in node.args)
                return f"{left} {infix} {right}"
            given = f":{node.dtype}" if OPS[node.op].result == "given" else ""
            return f"{node.op}({', '.join(map(part, node.args))}){given}"
    raise TypeError(f"not an expression: {node!r}")


def _operand(user: Apply | None, node: Expr, part: Callable[[Expr], str]) -> str:
    """The text of an operand of an infix operator, or of one of `… if … else …` without `user`."""
    spelled = part(node)
    if " " not in spelled or not isinstance(node, Apply | Load):
        return spelled
    if isinstance(node, Load):
        return spelled if node.guard is None else f"({spelled})"
    # Index sums are long and never rounded: i * 4 + j + 1
    plain = user is None or (
        user.op == "add" and user.dtype.name == "index" and node.op in ("add", "mul")
    )
    return spelled if plain or not OPS[node.op].infix else f"({spelled})"
