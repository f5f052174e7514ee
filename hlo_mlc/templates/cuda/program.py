"""From a tensor program to loops over blocks and threads: launches one after the other, and whole
loops in one launch where their bodies are small or their number of rounds is not known."""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.expr.core import Buffer
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Stmt
from hlo_mlc.loops.lower import lower_loop
from hlo_mlc.loops.rewrite import loop
from hlo_mlc.support.errors import CodegenError, ScheduleError
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.base import (
    Decision,
    Parameters,
    Scheduled,
    Template,
    Way,
    first_taking,
    open_schedule,
    work,
)
from hlo_mlc.templates.cuda.registry import TEMPLATES
from hlo_mlc.templates.program import loops_of
from hlo_mlc.tensor.core import Loop, Nest, Step, TensorProgram
from hlo_mlc.tensor.verify import verify

# Simple operations of one round of a loop that one block does in about the time of two launches
# (4 us each): 128 a cycle at 1.7 GHz.  Not measured.
SMALL_ROUND = 1_500_000
# Launches of one loop: more take the host longer than the program's other parts leave it.
MOST_ROUNDS = 1000


# The parameter that every template has, and its values, the first of which is the default: blocks
# for each multiprocessor, which then go through all tiles; 0 means a block for each tile.
# Not measured.
GRID = "grid"
COMMON: Mapping[str, tuple[int, ...]] = {GRID: (0, 1, 4, 8)}


def schedule_program(
    program: TensorProgram, target: CudaTarget, tuned: Mapping[int, Way] | None = None
) -> tuple[LoopProgram, tuple[Decision[Template[CudaTarget]], ...]]:
    """Loops for the whole kernel, of which the outermost are launches.

    tuned: for the position of a nest (in program order), the template and the parameters to use
    instead of the default.

    Raises: VerifyError for a program that breaks a rule or cannot be shown to keep it,
    ScheduleError for steps, which nests for GPUs are not scheduled by.
    """
    verify(program)
    assembler = _Assembler(target, tuned or {})
    parts = [(step, assembler.top(step)) for step in program.steps]
    return loops_of(program, parts, assembler.extra), tuple(assembler.decisions)


def decisions_of(
    program: TensorProgram, target: CudaTarget
) -> tuple[Decision[Template[CudaTarget]], ...]:
    """What `schedule_program` chooses by default, without loops.

    Raises: VerifyError as it does.
    """
    verify(program)
    assembler = _Assembler(target, {}, applies=False)
    for step in program.steps:
        assembler.top(step)
    return tuple(assembler.decisions)


def choose_template(
    nest: Nest, target: CudaTarget, wanted: str = ""
) -> tuple[Template[CudaTarget] | None, tuple[tuple[str, str], ...]]:
    """The wanted template if it takes the nest, else the first that does, and why those before it
    do not; None where none does: then the stages are computed one after the other."""
    return first_taking(TEMPLATES, wanted, lambda template: template.refusal(nest, target))


class _Assembler:
    def __init__(self, target: CudaTarget, tuned: Mapping[int, Way], applies: bool = True) -> None:
        """Templates are chosen only, and there are no loops, where it `applies` none."""
        self.target, self.tuned, self.applies = target, tuned, applies
        self.decisions: list[Decision[Template[CudaTarget]]] = []
        self.extra: dict[Step, list[Buffer]] = {}

    def top(self, step: Step) -> tuple[Stmt, ...]:
        """The launches of one step of the program."""
        scratch = self.extra.setdefault(step, [])
        if isinstance(step, Loop) and not by_launches(step):
            return (
                loop(
                    "block",
                    1,
                    LoopKind.BLOCK,
                    lambda b: self._step(step, self.target.one_block, scratch),
                ),
            )
        return self._step(step, self.target, scratch)

    def _step(self, step: Step, target: CudaTarget, scratch: list[Buffer]) -> tuple[Stmt, ...]:
        if isinstance(step, Nest):
            return self._nest(step, target, scratch)
        body = tuple(stmt for inner in step.body for stmt in self._step(inner, target, scratch))
        return lower_loop(
            step,
            body,
            tuple(stmt for inner in step.test for stmt in self._step(inner, target, scratch)),
        )

    def _nest(self, nest: Nest, target: CudaTarget, scratch: list[Buffer]) -> tuple[Stmt, ...]:
        if any(v.extent == 0 for s in nest.stages for v in s.axes):
            return ()
        wanted, how = self.tuned.get(len(self.decisions), ("", {}))
        if isinstance(how, tuple):
            raise ScheduleError("Nests of kernels for GPUs are not scheduled by steps")
        template, refused = choose_template(nest, target, wanted)
        if template is not None:
            given = how if template.name == wanted else {}
            return self._apply(template, nest, given, refused, target, scratch)
        if len(nest.stages) == 1:
            raise CodegenError(f"no template for GPUs takes this: {refused[-1][1]}")
        # One after the other: a stage reads what earlier ones wrote at its own point only, but now
        # it does so from memory.
        return tuple(
            stmt for stage in nest.stages for stmt in self._nest(Nest((stage,), 0), target, scratch)
        )

    def _apply(
        self,
        template: Template[CudaTarget],
        nest: Nest,
        given: Parameters,
        refused: tuple[tuple[str, str], ...],
        target: CudaTarget,
        scratch: list[Buffer],
    ) -> tuple[Stmt, ...]:
        common = {name: values[0] for name, values in COMMON.items()}
        parameters = {**template.default(nest, target), **common, **given}
        scheduled = template.apply(nest, target, parameters) if self.applies else Scheduled((), ())
        self.decisions.append(Decision(nest, template, parameters, refused, scheduled.schedules))
        scratch += scheduled.scratch
        blocks = parameters[GRID] * target.multiprocessors
        return _persistent(nest, scheduled.body, blocks) if blocks else scheduled.body


def _persistent(nest: Nest, body: tuple[Stmt, ...], blocks: int) -> tuple[Stmt, ...]:
    """The loops of a nest on a grid of `blocks` blocks at most."""
    schedule = open_schedule(nest, body)
    for stmt in body:
        if isinstance(stmt, For) and stmt.kind is LoopKind.BLOCK:
            schedule = schedule.persist(stmt.var.name, blocks)
    return schedule.program.body


def by_launches(step: Loop) -> bool:
    """Whether the host repeats a loop's body, rather than one block."""
    if step.trip_count is None or any(isinstance(s, Loop) for s in step.body):
        return False
    return (
        step.trip_count * len(step.body) <= MOST_ROUNDS and sum(map(work, step.body)) > SMALL_ROUND
    )
