"""From a tensor program to one loop program: a template for every nest, and an arena for
intermediate buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hlo_mlc.expr.core import Apply, Buffer
from hlo_mlc.expr.core import walk as walk_values
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Call, For, LoopKind, LoopProgram, Stmt, walk
from hlo_mlc.loops.lower import lower_branch, lower_loop
from hlo_mlc.loops.rewrite import on_one_thread
from hlo_mlc.loops.text import program_text as loops_text
from hlo_mlc.schedule.core import Schedule, Trace, replay
from hlo_mlc.schedule.ordered_bits import by_ordered_bits
from hlo_mlc.schedule.scalar_replacement import replace_scalars
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.arena import plan_arena, scratch_names
from hlo_mlc.templates.base import (
    Decision,
    Named,
    Parameters,
    Scheduled,
    Template,
    Way,
    first_taking,
    naive_loops,
    points,
    work,
)
from hlo_mlc.templates.base import lanes as lanes_of
from hlo_mlc.templates.points_outside import points_outside
from hlo_mlc.templates.pointwise_loop import in_blocks
from hlo_mlc.templates.registry import TEMPLATES
from hlo_mlc.templates.short import MOST_POINTS
from hlo_mlc.templates.update import is_by_elements
from hlo_mlc.tensor.canonical import CALLED_NAMES, canonical, written
from hlo_mlc.tensor.classify import contraction, stage_cost
from hlo_mlc.tensor.core import Branch, Loop, Nest, Step, TensorProgram, derived_of_any_names
from hlo_mlc.tensor.parts_read import on_parts, parts_read
from hlo_mlc.tensor.phases import in_phases
from hlo_mlc.tensor.points_apart import PointsApart, loops_apart
from hlo_mlc.tensor.text import program_text as text_of
from hlo_mlc.tensor.verify import verify

STEPWISE = ("side_by_side_steps", "stepwise", "plain")  # templates for procedures
REPEATS = 3  # nests that differ in their buffers only and become calls of one program
# Work (templates/base.py) of one thread during which the others fall asleep, and work to be shared
# out that waking them pays for: 500 trips of a loop, 200,000 of 350,000 shared, took 15.8 ms, and
# 2.4 on one thread.
ASLEEP, WORTH_WAKING = 20_000, 1_000_000
# What an operation of updates that come one by one counts there: eight of vectors.
ONE_BY_ONE = 8
# Vector operations of a trip, about six a nanosecond, from which on several threads pay off: what
# they hand to each other in every trip comes from another core's cache, 15 ns a line on some
# machines.  Products of 128 x 64 x 64 and a tanh took 6.6 us on one thread, and 7 to 20 on two;
# 64 x 128 x 128 took 11.2 and 9.8.
LONG_TRIP = 64_000
# What a load or store of a vector counts as: it comes from the second level.
ACCESS = 3


def choose_template(
    nest: Nest, target: CpuTarget, wanted: str = ""
) -> tuple[Template, tuple[tuple[str, str], ...]]:
    """The wanted template if it takes the nest, else the first that does, and why those before it
    do not."""
    return _first_or_wanted(nest, target, wanted)


@derived_of_any_names  # costs are asked of it before loops are made
def _first_or_wanted(
    nest: Nest, target: CpuTarget, wanted: str
) -> tuple[Template, tuple[tuple[str, str], ...]]:
    is_stepwise = any(stage.procedure is not None for stage in nest.stages)
    template, refused = first_taking(
        TEMPLATES,
        wanted,
        lambda template: (
            "its steps come one after the other"
            if is_stepwise and template.name not in STEPWISE
            else template.refusal(nest, target)
        ),
    )
    assert template is not None, "the plain template takes every nest"
    return template, refused


def schedule_program(
    program: TensorProgram, target: CpuTarget, tuned: Mapping[int, Way] | None = None
) -> tuple[LoopProgram, tuple[Decision[Template], ...]]:
    """Loops for the whole kernel.

    tuned: for the position of a nest (in program order), the template and the parameters, or steps,
    to use instead of the default.

    Raises: VerifyError for a program that breaks a rule or cannot be shown to keep it,
    ScheduleError for steps that do not apply.
    """
    verify(program)
    assembler = _Assembler(target, tuned or {}, _repeated(program), loops_apart(program))
    parts = [(step, assembler.step(step)) for step in program.steps]
    if any(not isinstance(step, Nest) for step in program.steps):
        kept = replace_scalars([body for _, body in parts], MOST_POINTS)  # as many as written out
        parts = [*zip(program.steps, kept, strict=True)]
    return loops_of(program, parts, assembler.extra), tuple(assembler.decisions)


def decisions_of(program: TensorProgram, target: CpuTarget) -> tuple[Decision[Template], ...]:
    """What `schedule_program` chooses by default, without loops but for nests that share a program:
    which of them do is known from their loops alone.

    Raises: VerifyError as it does.
    """
    verify(program)
    assembler = _Assembler(target, {}, _repeated(program), loops_apart(program), applies=False)
    for step in program.steps:
        assembler.step(step)
    return tuple(assembler.decisions)


def loops_of(
    program: TensorProgram,
    parts: list[tuple[Step, tuple[Stmt, ...]]],
    extra: Mapping[Step, list[Buffer]],
) -> LoopProgram:
    """The loops of all steps, and where what they keep meanwhile lies in the arena."""
    return LoopProgram(
        program.name,
        program.operands,
        program.results,
        tuple(stmt for _, statements in parts for stmt in statements),
        plan_arena(program, parts, extra),
        program.aliases,
    )


def decisions_text(decisions: Iterable[Decision[Named]]) -> str:
    """How the loops of each nest were made: the naive loops, and the loops after every rewrite."""
    parts = []
    for number, decision in enumerate(decisions):
        given = ", ".join(f"{name}={value}" for name, value in decision.parameters.items())
        how = "scheduled by hand" if decision.by_hand else f"({given})"
        parts.append(f"nest {number}: template {decision.template.name} {how}\n")
        parts += [f"not {name}: {reason}\n" for name, reason in decision.refused]
        if not decision.schedules:
            parts.append("built as a whole, not rewritten from naive loops\n")
        parts += map(history_text, decision.schedules)
    return "\n".join(parts)


def history_text(schedule: Schedule) -> str:
    """The naive loops of a schedule, and the result of every rewrite."""
    parts = [f"naive\n{loops_text(schedule.naive or schedule.program)}"]
    parts += [f"{step}\n{loops_text(program)}" for step, program in schedule.history()]
    return "\n".join(parts)


class _Assembler:
    def __init__(
        self,
        target: CpuTarget,
        tuned: Mapping[int, Way],
        repeated: frozenset[Nest],
        apart: Mapping[Loop, PointsApart],
        applies: bool = True,
    ) -> None:
        """Templates are chosen only, and there are no loops, where it `applies` none."""
        self.target, self.tuned, self.repeated, self.applies = target, tuned, repeated, applies
        self.apart = apart
        self.called: dict[str, LoopProgram] = {}
        self.decisions: list[Decision[Template]] = []
        self.extra: dict[Step, list[Buffer]] = {}
        self.outermost: Step | None = None

    def step(self, step: Step) -> tuple[Stmt, ...]:
        """The statements of one step."""
        top = self.outermost is None
        if top:
            self.outermost = step
        try:
            if isinstance(step, Nest):
                return self._nest(step)
            return self._loop(step) if isinstance(step, Loop) else self._branch(step)
        finally:
            if top:
                self.outermost = None

    def _branch(self, step: Branch) -> tuple[Stmt, ...]:
        then, otherwise = (
            tuple(stmt for inner in side for stmt in self.step(inner))
            for side in (step.then, step.otherwise)
        )
        return lower_branch(step, then, otherwise)

    def _loop(self, step: Loop) -> tuple[Stmt, ...]:
        apart = self.apart.get(step)
        kept = len(self.extra.get(self.outermost, ()))
        outside = apart and points_outside(apart, self.target, self.step)
        if outside is not None:
            alone = kept == len(self.extra.get(self.outermost, ()))
            return outside if alone else on_one_thread(outside)  # blocks share what is kept
        parts = [(inner, self.step(inner)) for inner in step.body]
        body = tuple(stmt for _, statements in parts for stmt in statements)
        if _falls_asleep(parts) or is_short(step, self.target):
            body = on_one_thread(body)
        blocked = in_blocks(step, self.target)
        if blocked is not None:
            return blocked
        return lower_loop(
            step, body, tuple(stmt for inner in step.test for stmt in self.step(inner))
        )

    def _nest(self, nest: Nest) -> tuple[Stmt, ...]:
        if any(v.extent == 0 for s in nest.stages for v in s.axes):
            return ()
        if nest in self.repeated:
            call = self._call(nest)
            if call is not None:
                return (call,)
        phases = in_phases(nest)
        if len(phases) > 1:
            return tuple(stmt for phase in phases for stmt in self._nest(phase))
        wanted, tuned = self.tuned.get(len(self.decisions), ("", {}))
        template, refused = choose_template(nest, self.target, wanted)
        parameters: Parameters = {}
        if isinstance(tuned, tuple):
            scheduled = self._rewritten(nest, template, wanted, tuned)
        else:
            parameters = template.default(nest, self.target)
            if template.name == wanted:
                parameters = {**parameters, **tuned}
            scheduled = (
                template.apply(nest, self.target, parameters) if self.applies else Scheduled((), ())
            )
        self.decisions.append(
            Decision(
                nest,
                template,
                parameters,
                refused,
                scheduled.schedules,
                by_hand=isinstance(tuned, tuple),
            )
        )
        self.extra.setdefault(self.outermost, []).extend(scheduled.scratch)
        return by_ordered_bits(scheduled.body)

    def _rewritten(self, nest: Nest, template: Template, wanted: str, steps: Trace) -> Scheduled:
        """The naive loops of the wanted template, as a person rewrites them."""
        naive = naive_loops(template, nest, self.target) if template.name == wanted else None
        if naive is None:
            raise ScheduleError(f"There are no naive loops of a template {wanted!r} for this nest")
        return Scheduled.of(replay(naive, steps))

    def _call(self, nest: Nest) -> Call | None:
        """A call of the program that nests like this one share; None if it needs scratch."""
        own = set(nest.private)
        outputs = tuple(b for b in written((nest,)) if b not in own)
        inputs = tuple(
            dict.fromkeys(
                b for s in nest.stages for b in s.inputs if b not in own and b not in outputs
            )
        )
        places = parts_read(nest, inputs)
        on_their_own, parts = on_parts(nest, places)
        program = canonical("nest", (on_their_own,), parts, outputs, CALLED_NAMES)
        key = text_of(program)
        loops = self.called.get(key)
        if loops is None:
            (step,) = program.steps
            position = len(self.decisions)
            tuned = {0: self.tuned[position]} if position in self.tuned else {}
            inner = _Assembler(self.target, tuned, frozenset(), {})
            body = inner.step(step)
            if inner.extra[step] or scratch_names(body) & {b.name for b in program.temporaries}:
                return None
            loops = self.called[key] = LoopProgram(
                f"nest{len(self.called)}", program.operands, program.results, body
            )
            self.decisions += inner.decisions
        return Call(loops, (*inputs, *outputs), tuple(places.values()))


def is_longer(program: TensorProgram, lines: int) -> bool:
    """Whether a program is more than so many lines of code for sure, before it is scheduled: each
    operation is one at least, but in nests that may share a program. What is written out has 1.6
    times as many."""
    every = [nest for step in program.steps for nest in _nests(step)]
    if sum(stage_cost(stage) for nest in every for stage in nest.stages) <= lines:
        return False
    repeated = _repeated(program)
    roots = [e for n in every if n not in repeated for s in n.stages for e in s.expressions]
    return lines < sum(isinstance(e, Apply) and e.dtype is not INDEX for e in walk_values(*roots))


def _nests(step: Step) -> Iterator[Nest]:
    if isinstance(step, Nest):
        yield step
    else:
        for inner in step.inner:
            yield from _nests(inner)


def _falls_asleep(parts: Sequence[tuple[Step, tuple[Stmt, ...]]]) -> bool:
    """Whether other threads have to be woken in every trip of a loop, for less than that takes."""
    if not all(isinstance(step, Nest) for step, _ in parts):
        return False
    shared = wakes = alone = 0
    for step, statements in (*parts, *parts):  # a trip comes after another one
        amount = work(step) * (ONE_BY_ONE if any(map(is_by_elements, step.stages)) else 1)
        if any(isinstance(s, For) and s.kind is LoopKind.PARALLEL for s in walk(statements)):
            wakes += alone >= ASLEEP
            shared, alone = shared + amount, 0
        else:
            alone += amount
    return wakes > 0 and shared < WORTH_WAKING * wakes


def is_short(loop: Loop, target: CpuTarget) -> bool:
    """Whether a trip of a loop ends before another thread could have begun to share it."""
    return (
        all(isinstance(step, Nest) for step in loop.body)
        and sum(_vector_operations(step, target) for step in loop.body) < LONG_TRIP
    )


def _vector_operations(nest: Nest, target: CpuTarget) -> int:
    total = 0
    for stage in nest.stages:
        one_by_one = stage.scan is not None or stage.sort is not None or is_by_elements(stage)
        lanes = 1 if one_by_one else lanes_of((stage,), target)
        each = (
            1
            if contraction(stage) is not None
            else stage_cost(stage) + ACCESS * (1 + len(stage.inputs))
        )
        total += points(stage) * each // lanes
    return total


def _repeated(program: TensorProgram) -> frozenset[Nest]:
    """Nests that look like enough others to be worth sharing a program with them.

    One that works in place cannot: a program that is called knows nothing of aliases.
    """
    aliased = {b for pair in program.aliases for b in pair}
    groups: dict[tuple, list[Nest]] = {}
    pending = [(step, False) for step in program.steps]
    while pending:
        step, in_loop = pending.pop()
        if not isinstance(step, Nest):
            pending += [(inner, True) for inner in step.inner]
        elif in_loop and all(points(s) <= MOST_POINTS for s in step.stages):
            continue  # a call would take longer, and what it hands on would go through memory
        elif not _outer_variables(step) and aliased.isdisjoint(
            b for s in step.stages for b in (*s.inputs, *s.outputs)
        ):
            shape = tuple(
                (
                    tuple(v.extent for v in (*s.axes, *s.reduce_axes)),
                    len(s.assigns),
                    len(s.inputs),
                    stage_cost(s),
                )
                for s in step.stages
            )
            groups.setdefault((step.shared, shape), []).append(step)
    return frozenset(n for group in groups.values() if len(group) >= REPEATS for n in group)


def _outer_variables(nest: Nest) -> bool:
    """True for a nest that depends on the counter of a loop around it."""
    for stage in nest.stages:
        own = {*stage.axes, *stage.reduce_axes, *stage.accumulators}
        if any(not e.free <= own for e in stage.expressions):
            return True
    return False
