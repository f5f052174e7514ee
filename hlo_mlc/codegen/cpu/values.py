"""Writing expressions: each distinct value once, in the outermost scope where it can be known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from hlo_mlc.codegen.cpu import conversions, indices, rare, scalar, types
from hlo_mlc.codegen.cpu.block import Block
from hlo_mlc.codegen.cpu.function import NO_READS, Function, Lane, Value
from hlo_mlc.codegen.cpu.nans import Nans
from hlo_mlc.codegen.cpu.program import Module, Storage
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import BF16, BOOL, F32, INDEX, DType
from hlo_mlc.support.errors import CodegenError


class Writer:
    """Writes the statements and expressions of one LLVM function.

    A function that runs a parallel loop's body is nested in its `parent`: what it uses from there
    travels in a closure, an array of eight-byte slots, filled as uses are met.  `read_load` writes
    load expressions.
    """

    def __init__(
        self,
        module: Module,
        read_load: Callable[[Writer, Load], Value],
        parent: Writer | None = None,
    ) -> None:
        self.module, self._read_load = module, read_load
        self.parent = parent
        self.function = Function()
        self._around = 0 if parent is None else parent.length  # lines, while this is written
        self.captured: list[Value] = []
        self.streams = False  # whether non-temporal stores were written
        self.stack_bytes = 0
        # Bytes and place that buffers with so many others around them have had so far.
        self.stack: list[tuple[int, str]] = []
        self.stack_depth = 0  # buffers on the stack around the statement being written
        self.computed: Buffer | None = None  # by the statement being written
        self._storages: dict[Buffer, Storage] = {}
        self._literals: dict[Const, Value] = {}
        self._context = "%ctx" if parent is None else None
        if parent is not None:
            self.function.constants = dict(parent.function.constants)

    @property
    def length(self) -> int:
        """Lines so far that the kernel is sure to have."""
        return self._around + self.function.names.length

    # Expressions

    def evaluate(self, root: Expr) -> Value:
        """The value of a statement's expression, which may hold ops that this target lacks."""
        return self.value(self.legalized(root))

    def legalized(self, root: Expr) -> Expr:
        """The expression in terms of ops that this target has."""
        lane = self.function.lane
        return self.module.legalized(root, in_vector=lane is not None and lane.width > 1)

    def value(self, root: Expr) -> Value:
        """The value of an expression."""
        known = self.known(root)
        if known is not None:
            return known
        if type(root) is Load:
            return self.function.remember(self.key(root), self._read_load(self, root))
        function, stack = self.function, [root]
        while True:
            node, operands, depth = stack[-1], [], len(stack)
            for operand in _eager(node):
                known = self.known(operand)
                if known is None:
                    stack.append(operand)
                else:
                    operands.append(known)
            if len(stack) > depth:
                continue
            stack.pop()
            key = self.key(node)
            known = function.memo.get(key)
            if known is None:
                known = function.remember(key, self._write(node, operands))
            if not stack:
                return known

    def known(self, node: Expr) -> Value | None:
        """The value of `node` if it needs no code."""
        kind = type(node)
        if kind is Const:
            known = self._literals.get(node)
            if known is None:
                known = self._literals[node] = Value(
                    types.constant(node), types.register_type(node.dtype)
                )
            return known
        if kind is Var:
            return self.variable(node)
        unrolled = self.module.unrolled[node]
        if not unrolled:
            return self.function.memo.get(node)
        return self.function.memo.get((node, *map(self.function.constants.get, unrolled)))

    def key(self, node: Expr) -> object:
        """What identifies the value of `node`: itself, with the unrolled numbers it depends on."""
        unrolled = self.module.unrolled[node]
        if not unrolled:
            return node
        return (node, *map(self.function.constants.get, unrolled))

    def variable(self, var: Var) -> Value:
        """The value of a loop variable or of a combiner's operand.

        Raises: CodegenError for a variable that nothing around the expression defines.
        """
        function = self.function
        number = function.constants.get(var)
        if number is not None:
            return _number(number)
        known = function.bindings.get(var)
        if known is None:
            known = function.bindings[var] = self._import(var)
        return known

    def _import(self, var: Var) -> Value:
        if self.parent is not None:
            return self.capture(self.parent.variable(var))
        raise CodegenError(
            f"Expected {var.name!r} in kernel {self.module.program.name!r} to be the variable of "
            f"an enclosing loop"
        )

    def capture(self, value: Value) -> Value:
        """A value of the parent, loaded from the closure."""
        if types.is_literal(value.text):
            return value
        prepare = self.function.prepare
        slot = prepare(f"getelementptr i64, ptr %closure, i64 {len(self.captured)}")
        self.captured.append(value)
        text = prepare(f"load {value.element}, ptr ", slot, ", align 8, !invariant.load !0")
        return Value(text, value.element)

    def _write(self, node: Expr, args: list[Value]) -> Value:
        """Code for `node`, whose operands are `args` if they are computed in any case."""
        if isinstance(node, Load):
            return self._read_load(self, node)
        if node.op == "select_unlikely" and not _is_cheap(node.args[1]):
            return self._branch_around(node)
        if node.op == "pick":
            return self._pick(node, args[0])
        if node.op == "convert" and node.dtype is BF16 and self._rounds_all(node.args[0]):
            return self._rounded(args[0])
        function, module = self.function, self.module
        if node.dtype is INDEX or any([a.dtype is INDEX for a in node.args]):
            return indices.apply(function, module.target, node, args)
        if node.op in _LOGIC and (folded := _fold_logic(node.op, args)) is not None:
            return folded
        lanes, depth, reads = _together(args, function.scopes[-1].floor)
        site = scalar.Site(function.at(depth), module.target, node.args[0].dtype, node.dtype, lanes)
        texts = [function.widen(a, lanes) for a in args]
        if node.op == "select" and lanes and module.target.blends_before_stores:
            texts = list(map(self._kept_apart, node.args, args, texts))
        text = scalar.spell(node.op, site, texts)
        return Value(text, types.register_type(node.dtype), lanes, depth, reads)

    def _kept_apart(self, node: Expr, value: Value, text: str) -> str:
        """What a select chooses from, hidden from LLVM if it is a vector as it lies in a buffer
        that is written: of this, the select and a store to the same place LLVM makes a masked
        store."""
        if not isinstance(node, Load) or not value.lanes or not value.reads or node.dtype is BOOL:
            return text
        block = self.function.at(value.depth)
        return block.define(f"freeze {value.type} ", text, lanes=value.lanes)

    def _pick(self, node: Apply, x: Value) -> Value:
        """An entry of a table of constants."""
        function = self.function
        lanes, depth, reads = _together((x,), function.scopes[-1].floor)
        site = scalar.Site(function.at(depth), self.module.target, node.dtype, node.dtype, lanes)
        text = scalar.pick(site, x.text, [types.constant(entry) for entry in node.args[1:]])
        return Value(text, types.register_type(node.dtype), lanes, depth, reads)

    def _rounds_all(self, x: Expr) -> bool:
        """Whether rounding an f32 to bf16 needs no look for NaNs."""
        return x.dtype is F32 and self.module.nans[x] is Nans.QUIET

    def _rounded(self, x: Value) -> Value:
        """An f32 rounded to bf16, which no NaN makes another number."""
        function = self.function
        lanes, depth, reads = _together((x,), function.scopes[-1].floor)
        text = conversions.narrow_bf16(function.at(depth), x.text, lanes, looks_for_nans=False)
        return Value(text, types.register_type(BF16), lanes, depth, reads)

    def op(self, name: str, dtype: DType, args: Sequence[Value]) -> Value:
        """One scalar op on values at hand, all of type `dtype`."""
        function = self.function
        lanes, depth, reads = _together(args, function.scopes[-1].floor)
        site = scalar.Site(function.at(depth), self.module.target, dtype, dtype, lanes)
        text = scalar.spell(name, site, [function.widen(a, lanes) for a in args])
        return Value(text, types.register_type(dtype), lanes, depth, reads)

    def _branch_around(self, node: Apply) -> Value:
        """select_unlikely: the rare side is computed only when some lane needs it."""
        function = self.function
        with function.truncated(self._placement(node)):
            condition, fast = self.value(node.args[0]), self.value(node.args[2])
            if types.is_literal(condition.text):
                return _with(
                    condition, self.value(node.args[1]) if condition.text == "true" else fast
                )
            block, depth = function.block, function.depth
            taken = self.any_lane(condition, block)
            computes = all(read.source.scope != "register" for read in loads(node.args[1]))
            inner = Block(function.names, function.names.label())
            with function.scope(inner, branch=True, computes=computes) as cold:
                slow_label = cold.label
                slow = self._rare(node.args[1])
                lanes = max(condition.lanes, slow.lanes, fast.lanes)
                site = scalar.Site(cold, self.module.target, BOOL, node.dtype, lanes)
                chosen = scalar.spell(
                    "select", site, [function.widen(v, lanes) for v in (condition, slow, fast)]
                )
            whole = types.vector(fast.element, lanes)
            fast_text = function.widen(fast, lanes)
            done = function.names.label()
            block.branch(taken, slow_label, done, ", !prof !2")
            fast_label = block.label
            block.start(slow_label)
            block.instructions += cold.instructions
            block.jump(done)
            block.start(done)
            text = block.define(
                f"phi {whole} [ ",
                fast_text,
                ", %",
                fast_label,
                " ], [ ",
                chosen,
                ", %",
                cold.label,
                " ]",
                lanes=lanes,
            )
            reads = condition.reads | slow.reads | fast.reads
            return Value(text, fast.element, lanes, depth, reads)

    def _rare(self, node: Expr) -> Value:
        """What is rarely computed: by a call, where it is long."""
        part = rare.cut(node, lambda e: self.known(e) is not None)
        if part is None:
            return self.value(node)
        values = [self.value(e) for e in part.arguments]
        function, module = self.function, self.module
        key = part.body, tuple(v.lanes for v in values)
        if key not in module.rare and part.operations < rare.LONG:
            module.rare[key] = None
            return self.value(node)
        name, lanes = module.rare[key] = module.rare.get(key) or self._outlined(part, values)
        _, depth, reads = _together(values, function.scopes[-1].floor)
        element = types.register_type(node.dtype)
        pieces: list[str] = []
        for v in values:
            before = ", " if pieces else f"call {types.vector(element, lanes)} {name}("
            pieces += (f"{before}{v.type} ", v.text)
        text = function.at(depth).define(*pieces, ")", lanes=lanes)
        return Value(text, element, lanes, depth, reads)

    def _outlined(self, part: rare.Rare, values: Sequence[Value]) -> tuple[str, int]:
        """The name of a new function of values like these, and the lanes of its result."""
        module, inner = self.module, Writer(self.module, self._read_load)
        given = [
            Value(f"%{p.name}", v.element, v.lanes)
            for p, v in zip(part.parameters, values, strict=True)
        ]
        inner.function.bindings.update(zip(part.parameters, given, strict=True))
        result = inner.value(part.body)
        name = f"@rare{next(module.numbers)}"
        lines = [
            f"define internal {result.type} {name}("
            f"{', '.join(f'{v.type} {v.text}' for v in given)}) "
            "noinline nounwind willreturn memory(none) {",
            "entry:",
            *inner.function.prologue.lines(),
            *inner.function.block.lines(),
            f"  ret {result.type} {result.text}",
            "}",
        ]
        module.functions.append("\n".join(lines))
        self.function.names.others += len(lines)
        return name, result.lanes

    def any_lane(self, condition: Value, block: Block) -> str:
        """Whether a condition holds in some lane that is executed."""
        if not condition.lanes:
            return condition.text
        lane = self.function.lane
        text, kind = condition.text, condition.type
        if lane is not None and not lane.is_full:
            text = block.define(f"and {kind} ", text, ", ", lane.mask, lanes=condition.lanes)
        return block.define(
            f"call i1 @llvm.vector.reduce.or.v{condition.lanes}i1({kind} ", text, ")"
        )

    def _placement(self, node: Expr) -> int:
        """The outermost scope in which all of `node` can be known."""
        function = self.function
        depth = function.scopes[-1].floor
        for var in node.free:
            depth = max(depth, self.variable(var).depth)
        for inner in loads(node):
            storage = self.storage(inner.source)
            depth = max(depth, function.load_depth(storage.writable))
        return depth

    def combine(
        self, combiner: Combiner, lhs: Sequence[Value], rhs: Sequence[Value]
    ) -> list[Value]:
        """The combiner's results for two tuples of values."""
        if combiner.name in _DIRECT and not combiner.lhs[0].dtype.is_narrow_float and len(lhs) == 1:
            return [self.op(combiner.name, combiner.lhs[0].dtype, (lhs[0], rhs[0]))]
        function = self.function
        with function.scope():  # what depends on the operands holds for these operands only
            depth = function.depth
            for var, value in zip((*combiner.lhs, *combiner.rhs), (*lhs, *rhs), strict=True):
                function.bindings[var] = value._replace(depth=depth)
            results = [self.evaluate(r) for r in combiner.results]
        return [r._replace(depth=min(r.depth, depth - 1)) for r in results]

    # Buffers

    def storage(self, buffer: Buffer) -> Storage:
        """Where a buffer lies.

        Raises: CodegenError for a buffer that is neither allocated nor one of the kernel's.
        """
        known = self._storages.get(buffer)
        if known is None:
            if self.parent is not None:
                outer = self.parent.storage(buffer)
                pointer = self.capture(Value(outer.pointer, "ptr")).text
                known = outer._replace(pointer=pointer)
            else:
                known = self.module.storage(self.function, buffer)
            self._storages[buffer] = known
        return known

    def context(self) -> str:
        """The pointer to the execution's context."""
        if self._context is None:
            assert self.parent is not None
            self._context = self.capture(Value(self.parent.context(), "ptr")).text
        return self._context

    def allocate(self, buffer: Buffer, storage: Storage | None) -> None:
        """Say where a buffer lies from now on (None: nowhere)."""
        if storage is None:
            self._storages.pop(buffer, None)
        else:
            self._storages[buffer] = storage

    def enter_lanes(self, lane: Lane) -> None:
        """Bind the variable of a vector loop to 0, 1, 2, …"""
        self.function.lane = lane
        self.function.bindings[lane.var] = Value(types.iota("i32", lane.width), "i32", lane.width)


_LOGIC = frozenset(("and", "or", "not", "select", "select_unlikely"))
# Combiners that are one op, written without going through their expressions.
_DIRECT = frozenset(("add", "mul", "max", "min", "and", "or", "xor"))


@functools.cache
def _number(number: int) -> Value:
    """What the variable of an unrolled loop is in one of its copies."""
    return Value(str(number), types.INDEX_TYPE)


def _together(args: Sequence[Value], depth: int) -> tuple[int, int, frozenset[int]]:
    """The lanes of values, where they are all known, no further out than `depth`, and what they
    read."""
    lanes, reads = 0, NO_READS
    for a in args:
        if a.lanes > lanes:
            lanes = a.lanes
        if a.depth > depth:
            depth = a.depth
        if a.reads:
            reads = reads | a.reads
    return lanes, depth, reads


def _eager(node: Expr) -> tuple[Expr, ...]:
    """Operands that are computed in any case before `node`."""
    if isinstance(node, Apply) and (node.op != "select_unlikely" or _is_cheap(node.args[1])):
        return node.args
    return ()


def _is_cheap(node: Expr) -> bool:
    return isinstance(node, Const | Var)


def _fold_logic(op: str, args: Sequence[Value]) -> Value | None:
    """and, or, not and select with literal conditions: guards that unrolling has decided, or that
    were stored just before, which holds no longer than what they were read from."""
    first = args[0]
    if op in ("select", "select_unlikely"):
        chosen = {"true": args[1], "false": args[2]}.get(first.text)
        return None if chosen is None else _with(first, chosen)
    if op == "not":
        return {"true": first._replace(text="false"), "false": first._replace(text="true")}.get(
            first.text
        )
    for one, other in (args, args[::-1]):
        if one.text in ("true", "false"):
            return _with(one, other) if (one.text == "true") == (op == "and") else one
    return None


def _with(known: Value, value: Value) -> Value:
    """A value that is the one sought because of what another is `known` to be."""
    return value._replace(depth=max(known.depth, value.depth), reads=known.reads | value.reads)
