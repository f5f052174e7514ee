"""What our kernels take on a CPU, as far as it decides what is computed together and what is taken:
fusion (fuse/) and choice (choose/) ask the same questions.

All follows from what a stage does (work.py) and from the rates of the machine (target/rates.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.partition.work import Work
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.rates import Rates
from hlo_mlc.templates.base import SERIAL_WORK, lanes, points
from hlo_mlc.templates.product_roles import adds_pairs
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage, Step
from hlo_mlc.tensor.rewrite import replace_buffers

# Nanoseconds of one thread for an element that does not lie beside those of the next lanes, no
# matter how many these are: transposing 2048 square of f32 and of bf16 took half of one on Zen 4,
# exp of every other element 0.26 more than of neighbours, looking up 131,072 0.3 on Zen 5.
APART_NS = 0.35
MARGIN = 1.02  # less of an advantage is none: nobody could measure it
SMALL_US = 2.0  # what takes less does not deserve a custom call of its own
# What threads of two kernels in a row wait, over what it takes to wake them once.  Three products
# of 16 x 256 x 256 ran 1.13 to 1.25 times as fast in one kernel, three of 128 x 256 x 256 1.07 to
# 1.13 times, 8 to 15 us for each kernel less, three of 128 x 768 x 768 1.01 times.
_BETWEEN_KERNELS = 2


@dataclass(frozen=True, slots=True)
class Costs:
    """What fusion is told of a machine.

    Where kernels are to serve any number of rows, what is along the first dimension of an array
    counts as so many `rows`, however many there are here.  Where none `merges` with others, none is
    too small to be one.  Elements that are scattered one by one are written in turn by one thread,
    or, where not `scatters_in_turn`, by one thread each. Products of narrow integers may be added
    up two at a time where they do so `in_pairs`.
    """

    target: CpuTarget
    rows: int | None = None
    merges: bool = True
    scatters_in_turn: bool = True
    in_pairs: bool = True

    def are_small(self, steps: Sequence[Step]) -> bool:
        """Whether steps are too short to deserve a custom call of their own; runs of such steps
        become one kernel."""
        return self.merges and all(_is_small(step, self.target, self.rows) for step in steps)

    def gains_from_company(self, product: Stage) -> bool:
        """Whether what is saved where a product is in a kernel with others, a call and the waking
        of threads that fall asleep on the way, is more than nothing beside what it takes."""
        work, rates = Work.of(_of_rows(product, self.rows)), self.target.rates
        threads = threads_for(work, self.target.cores)
        saved = rates.call_us + _BETWEEN_KERNELS * rates.fork_us * (threads > 1)
        takes = vector_us(work, lanes((product,), self.target), rates) / threads
        return saved > (MARGIN - 1) * takes

    def adds_pairs(self, product: Stage) -> bool:
        """Whether products are added up two at a time, which they are in a nest of their own: two
        layers of 128 x 256 x 1024 bytes, with the largest number of each row between them, took 0.4
        of the time so."""
        return self.in_pairs and adds_pairs(coalesce(product), self.target)


def threads_for(work: Work, cores: int) -> int:
    """The number of threads that share work in vectors."""
    amount = work.operations + work.products + work.apart
    return max(1, min(cores, 2 * amount // SERIAL_WORK))


def vector_us(work: Work, vector: int, rates: Rates) -> float:
    """The time of one thread; `vector` is the number of lanes."""
    vectors = work.operations / rates.vector_operations + work.products / rates.vector_products
    return vectors / vector + APART_NS * rates.one_by_one * work.apart / 1e3


def _is_small(step: Step, target: CpuTarget, rows: int | None) -> bool:
    """Whether a step is too short to deserve a custom call of its own."""
    if not isinstance(step, Nest):
        return False
    return sum(_short_us(stage, target, rows) for stage in step.stages) < SMALL_US


def _short_us(stage: Stage, target: CpuTarget, rows: int | None) -> float:
    """The approximate time of a stage, or of so many rows of it."""
    stage = _of_rows(stage, rows)
    work, rates, vector = Work.of(stage), target.rates, lanes((stage,), target)
    return max(
        work.operations / (vector * rates.vector_operations),
        points(stage) / (vector * rates.vector_products),
        rates.pass_us(work.moved_bytes),
    )


def _of_rows(stage: Stage, rows: int | None) -> Stage:
    """The stage and its buffers, cut to so many rows; the stage itself where it has no rows."""
    axis = None if rows is None else _row_axis(stage)
    if axis is None:
        return stage
    accesses = [one for group in stage.loads_by_buffer.values() for one in group]
    places = [(one.source, one.indices) for one in accesses]
    places += [(store.buffer, store.indices) for store in (*stage.along, *stage.assigns)]
    cut = {
        buffer: replace(buffer, shape=(rows, *buffer.shape[1:]))
        for buffer, indices in places
        if indices and indices[0] is axis
    }
    nest = replace_buffers(
        Nest((stage,), len(stage.axes)), cut, axes={axis: Var(axis.name, axis.dtype, rows)}
    )
    return nest.stages[0]


def _row_axis(stage: Stage) -> Var | None:
    """The axis that rows are along: the first, or one that is folded, and the first dimension of
    whatever is read along it."""
    at: dict[Expr, set[int]] = {}
    for access in (one for group in stage.loads_by_buffer.values() for one in group):
        for d, place in enumerate(access.indices):
            at.setdefault(place, set()).add(d)
    return next(
        (
            axis
            for axis, read in (
                (axis, at.get(axis, set())) for axis in (*stage.axes[:1], *stage.reduce_axes)
            )
            if read <= {0} and (read or axis in stage.axes)
        ),
        None,
    )
