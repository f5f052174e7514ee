"""A kernel in its place in a graph: the nodes that it computes, and the values that it reads and
gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from hlo_mlc.expr.core import Buffer
from hlo_mlc.graph.core import Node, Value, constant_node
from hlo_mlc.graph.counting import trips
from hlo_mlc.graph.rewrite import operands_first
from hlo_mlc.ops.shape import splat_value
from hlo_mlc.partition.fuse.donation import Aliases, in_place
from hlo_mlc.partition.fuse.groups import Group, finished
from hlo_mlc.partition.fuse.limits import FusionLimits
from hlo_mlc.partition.fuse.recurrences import as_scans
from hlo_mlc.partition.kernel import Kernel, make_kernel
from hlo_mlc.partition.lower.layouts import LaidOut, lay_out
from hlo_mlc.partition.lower.packing import pack
from hlo_mlc.partition.naming import kernel_name
from hlo_mlc.partition.row_blocks import RowBlocks
from hlo_mlc.tensor.canonical import stages, written
from hlo_mlc.tensor.copy_coalescing import merge_copies
from hlo_mlc.tensor.core import UNKNOWN_TRIPS, Step
from hlo_mlc.tensor.liveness import step_reads, step_writes, without_dead
from hlo_mlc.tensor.orders import Order

TRIVIAL = frozenset(
    ("sdy.sharding_constraint", "stablehlo.constant", "stablehlo.reshape", "stablehlo.iota")
)


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A kernel in its place: the nodes that it computes and the values that it connects.

    `aliases` are the positions of results and of the operands whose memory they take over.
    `border_bytes` are those of values that pass between it and other nodes of its graph,
    `copied_bytes` those of results that XLA has to copy into memory that is read for them;
    `is_whole` says that there is nothing else in the program, `in_loop` that it is a part of the
    body of a loop that stays with XLA, `in_branch` the same of branches.  `constants` are those
    that only it uses: constants of the graph in another layout.  `locations` are the lines of the
    user's program that compute what the kernel's buffers hold, by the names that they have in the
    kernel.  `blocks` are kernels that compute so many rows of it each, in its stead; `others` are
    what other numbers of rows need beside them.  `orders` are those of the values that it has in
    memory otherwise than row by row, `transposed` are such that XLA transposes for it.  `trips` are
    how often the loops among its nodes run.  `makers` are the operations of its graph that values
    come from; `all_nodes` are its own with reshapes and constants, which `nodes` leaves out.
    `held_bytes` are those of all that the program is given and gives.
    """

    kernel: Kernel
    nodes: tuple[Node, ...]
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    aliases: tuple[tuple[int, int], ...]
    border_bytes: int
    copied_bytes: int
    is_whole: bool
    in_loop: bool = False
    in_branch: bool = False
    constants: tuple[Node, ...] = ()
    locations: Mapping[str, str] = field(default_factory=dict)
    blocks: RowBlocks | None = None
    others: tuple[Kernel, ...] = ()
    orders: Mapping[Value, Order] = field(default_factory=dict)
    transposed: tuple[Value, ...] = ()
    trips: Mapping[Node, int] = field(default_factory=dict)
    makers: Mapping[Value, Node] = field(default_factory=dict)
    all_nodes: tuple[Node, ...] = ()
    held_bytes: int = 0

    def call(
        self,
        operands: tuple[Value, ...],
        results: tuple[Value, ...],
        attributes: Mapping[str, object],
    ) -> Node:
        """A call of its kernel, or of one that computes a part of it."""
        layouts = (
            {
                name: tuple(self.orders.get(v, ())[::-1] for v in values)
                for name, values in (("operand_layouts", operands), ("result_layouts", results))
            }
            if self.orders
            else {}
        )
        return Node(
            "hlo_mlc.kernel",
            operands,
            results,
            {**attributes, **layouts},
            location=self.kernel.name,
        )  # what XLA, and so JAX's profiler, calls it by

    @property
    def given(self) -> frozenset[Buffer]:
        """The kernel's buffers of what the program is given, or has as constants."""
        return frozenset(
            buffer
            for buffer, value in zip(self.kernel.program.operands, self.operands, strict=True)
            if value not in self.makers or self.makers[value].op == "stablehlo.constant"
        )

    @property
    def kernels(self) -> list[tuple[Kernel, int, float]]:
        """What is called, how often, and which share of the whole one call computes."""
        if self.blocks is None:
            return [(self.kernel, 1, 1.0)]
        return self.blocks.kernels


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of the graph that clusters are cut out of.

    `values` are those in buffers, `read_by` the groups that read a buffer, `makers` the
    operations that values come from, `own` those of constants that only kernels read.  `heirs` are
    the parameters whose memory is for a result.  `orders` are those of values that are in memory
    otherwise than row by row, as far as they are known, `free` the buffers that may be.
    `held_bytes` are those of all that it is given and gives.
    """

    results: frozenset[Value]
    values: Mapping[Buffer, Value]
    read_by: Mapping[Buffer, set[int]]
    makers: Mapping[Value, Node]
    own: Sequence[Node]
    heirs: Mapping[Value, Value]
    orders: dict[Value, Order]
    free: Set[Buffer]
    limits: FusionLimits
    is_whole: bool = False
    in_loop: bool = False
    in_branch: bool = False
    held_bytes: int = 0


def cluster_of(run: list[Group], around: Context) -> Cluster:
    """The cluster that computes some groups."""
    makers, orders = around.makers, around.orders
    members = {g.number for g in run}
    steps, operands, outputs = _computed(run, members, around)
    laid, steps, aliases = _in_memory(steps, operands, outputs, members, around)
    inherited = {around.values[b] for b in operands}
    operands, outputs = (tuple(laid.made.get(b, b) for b in group) for group in (operands, outputs))
    values = {**around.values, **{new: around.values[b] for b, new in laid.made.items()}}
    steps = merge_copies(steps, outputs, (b for pair in aliases for b in pair))
    steps = without_dead(as_scans(steps, outputs, around.limits), outputs)
    tables = {
        b: makers[values[b]].literal
        for b in operands
        if values[b] in makers and is_table(makers[values[b]])
    }
    steps, panels = pack(steps, tables) if around.limits.packs_constants else (steps, {})
    constants = {new: constant_node(layout.of(tables[b])) for new, (b, layout) in panels.items()}
    read = {b for s in steps for b in step_reads(s)}
    given = tuple(b for b in operands if b in read)
    kernel = make_kernel(steps, (*given, *constants), outputs, aliases)
    sources = (*(values[b] for b in given), *(node.results[0] for node in constants.values()))
    targets = tuple(values[b] for b in outputs)
    border = [b for b in given if values[b] in makers and counts(makers[values[b]])]
    border += [b for b in outputs if values[b] not in around.results]
    moved = dict(aliases)
    copied = [b for b in outputs if around.heirs.get(values[b]) in inherited and b not in moved]
    all_nodes = _between(sources, targets, makers)
    nodes = tuple(filter(counts, all_nodes)) or all_nodes
    locations = _locations(kernel, steps, values, makers)
    name = kernel_name(kernel.program, locations, [node.location for node in nodes])
    connected = (*given, *outputs)
    return Cluster(
        replace(kernel, name=name),
        nodes,
        sources,
        targets,
        tuple((outputs.index(r), given.index(o)) for r, o in aliases),
        sum(b.bytes for b in border),
        sum(b.bytes for b in copied),
        around.is_whole,
        around.in_loop,
        around.in_branch,
        (*constants.values(), *(n for n in around.own if n.results[0] in sources)),
        locations,
        orders={values[b]: o for b, o in laid.orders.items() if laid.made[b] in connected},
        transposed=tuple(
            values[b] for b in connected if values[b] in orders and b not in laid.made.values()
        ),
        trips=_trips(nodes, makers),
        makers=makers,
        all_nodes=all_nodes,
        held_bytes=around.held_bytes,
    )


def _in_memory(
    steps: Sequence[Step],
    operands: tuple[Buffer, ...],
    outputs: tuple[Buffer, ...],
    members: Set[int],
    around: Context,
) -> tuple[LaidOut, list[Step], Aliases]:
    """How what some groups read and give lies in memory; the steps with that, and which results
    take over the memory of which operands."""
    orders, values = around.orders, around.values
    known = {b: orders[values[b]] for b in (*operands, *outputs) if values[b] in orders}
    laid = lay_out(steps, known, outputs, around.free)
    wanted = [
        (laid.made.get(r, r), laid.made.get(o, o))
        for r, o in _inheritances(operands, outputs, members, around)
        if laid.orders.get(r) == laid.orders.get(o)
    ]
    return laid, *in_place(laid.steps, wanted)


def _computed(
    run: list[Group], members: Set[int], around: Context
) -> tuple[list[Step], tuple[Buffer, ...], tuple[Buffer, ...]]:
    """The steps of some groups, by their numbers, what they read that is computed elsewhere, and
    what is read elsewhere of what they compute."""
    needed = frozenset(
        b
        for g in run
        for b in g.writes
        if around.values.get(b) in around.results or not around.read_by.get(b, members) <= members
    )
    steps = without_dead(
        [s for group in run for s in finished(group, around.read_by, needed)], needed
    )
    stored = [sorted(step_writes(s), key=lambda b: int(b.name[1:])) for s in steps]
    own = {b for group in stored for b in group}
    read = (b for s in steps for stage in stages(s) for b in stage.inputs if b not in own)
    made = (b for group in stored for b in group if b in needed)
    return steps, tuple(dict.fromkeys(read)), tuple(dict.fromkeys(made))


def _inheritances(
    operands: tuple[Buffer, ...], results: tuple[Buffer, ...], members: Set[int], around: Context
) -> list[tuple[Buffer, Buffer]]:
    """Results with operands whose memory they may take over, best first: nobody but the groups that
    are the cluster's `members` reads these."""
    values, makers = around.values, around.makers
    at = {values[o]: o for o in operands}
    found = [
        (r, o)
        for r in results
        if (o := at.get(around.heirs.get(values[r]))) is not None and around.read_by[o] <= members
    ]
    spent = [
        o
        for o in operands
        if around.read_by[o] <= members
        and values[o] not in around.results
        and values[o] in makers
        and _makes_memory(makers[values[o]])
    ]
    return found + [(r, o) for r in results for o in spent if values[r].type == values[o].type]


def _trips(nodes: Iterable[Node], makers: Mapping[Value, Node]) -> dict[Node, int]:
    def known(value: Value) -> int | None:
        literal = makers[value].literal if value in makers else None
        return (
            int(literal)
            if literal is not None and not literal.ndim and literal.dtype.kind in "iu"
            else None
        )

    return trips((node for node in nodes if node.regions), known, UNKNOWN_TRIPS)


def _makes_memory(node: Node) -> bool:
    """Whether an operation is known to allocate memory for its results."""
    return counts(node) and node.op not in (
        "stablehlo.optimization_barrier",
        "stablehlo.bitcast_convert",
    )


def _locations(
    kernel: Kernel,
    steps: Sequence[Step],
    values: Mapping[Buffer, Value],
    makers: Mapping[Value, Node],
) -> dict[str, str]:
    """The user's lines that a kernel's results and temporaries come from."""
    own = {*kernel.inputs, *kernel.outputs}
    names = {
        **dict(zip(kernel.outputs, kernel.program.results, strict=True)),
        **dict(
            zip(
                (b for b in written(steps) if b not in own), kernel.program.temporaries, strict=True
            )
        ),
    }
    return {
        name.name: makers[values[b]].location
        for b, name in names.items()
        if values.get(b) in makers
    }


def _between(
    sources: tuple[Value, ...], targets: tuple[Value, ...], makers: Mapping[Value, Node]
) -> tuple[Node, ...]:
    """The operations on all paths from some values to others, each after its operands."""
    given = set(sources)
    nodes = operands_first(
        [makers[v] for v in targets if v in makers], lambda v: None if v in given else makers.get(v)
    )
    within = {value: node for node in nodes for value in node.results}
    if given.isdisjoint(within):
        return nodes
    # A loop is needed for one of its results, and others are given: what reads these follows it.
    return operands_first(nodes, within.get)


def is_table(node: Node) -> bool:
    """A constant with several different values: kernels read it as an operand."""
    return node.op == "stablehlo.constant" and splat_value(node.literal) is None


def counts(node: Node) -> bool:
    """Whether an operation counts in the coverage of a program."""
    return node.op not in TRIVIAL and node.op != "hlo_mlc.kernel"
