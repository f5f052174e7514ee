"""Whatever a primitive accepts computes the same: each one alone, and in long chains."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr.dtypes import F32, I32
from hlo_mlc.loops.core import Allocate, For, LoopProgram, walk
from hlo_mlc.loops.rewrite import paths
from hlo_mlc.schedule.core import PRIMITIVES, Schedule, Step, replay
from hlo_mlc.schedule.splitting import TAILS
from hlo_mlc.support.errors import ScheduleError

# These are for loops as GPUs have them: test_pipelining.py, test_kinds.py.
FOR_GPUS = ("persist", "double_buffer", "tensorize")
ANY = [
    *(name for name in PRIMITIVES if name not in FOR_GPUS),
    *(f"split {tail}" for tail in TAILS if tail != "peel"),
    "cache_read loops",
    "cache_read along",
    "distribute each",
    "rename all",
]
# Loops are bound to a GPU after all other rewrites.
UNBOUND = [name for name in ANY if name != "bind"]


# Those that take a product apart.
OF_PRODUCTS = ("promote", "hoist", "fuse_first", "prefetch_next")


def candidate(primitive: str, program: LoopProgram, rng: np.random.Generator) -> Step:
    """A step with arguments that exist, legal or not."""
    names = list(Schedule(program).loop_names)
    if not names:
        return Step("unroll", ("none",))
    loop = names[int(rng.integers(len(names)))]
    other = names[int(rng.integers(len(names)))]
    number = int(rng.integers(1, 6))
    buffers = [b.name for b, _ in program.scratch]
    private = [s.buffer.name for s in walk(program.body) if isinstance(s, Allocate)]
    everything = [*buffers, *(b.name for b in (*program.operands, *program.results))]
    match primitive:
        case "cache_read loops":
            buffer = everything[int(rng.integers(len(everything)))]
            return Step("cache_read", (buffer, loop, "loops", *((other,) if number > 3 else ())))
        case "cache_read along":
            buffer = everything[int(rng.integers(len(everything)))]
            at = str(rng.choice([name for name in names if name.endswith(".o")] or names))
            inner = [
                s.var.name
                for path in paths(program.body)
                for s in path[-1:]
                if isinstance(s, For)
                and any(isinstance(a, For) and a.var.name == at for a in path[:-1])
            ]
            return Step("cache_read", (buffer, at, "loops", "", str(rng.choice(inner or names))))
        case "pad":
            return Step(primitive, (str(rng.choice(private or [""])), number, number % 2))
        case "coalesce":
            return Step(primitive, (str(rng.choice(private or [""])),))
        case "transform_layout":
            sizes = {
                s.buffer.name: s.buffer.shape for s in walk(program.body) if isinstance(s, Allocate)
            }
            name = str(rng.choice(private or [""]))
            parts = tuple(
                n
                for size in sizes.get(name, ())
                for n in ((size // 2, 2) if size % 2 == 0 and number > 2 else (size,))
            )
            order = rng.permutation(len(parts)).astype(str).tolist()
            joined = [f"{order[0]} {order[1]}", *order[2:]] if number > 3 and order[1:] else order
            return Step(primitive, (name, parts, tuple(joined)))
        case "split" | "cut":
            return Step(primitive, (loop, number))
        case "set_apart":
            return Step(primitive, (loop, number - 1, number + int(rng.integers(3))))
        case "expand":
            scope, place = ("register", "stack"), ("first", "last")
            return Step(
                primitive, (loop, scope[int(rng.integers(2))], number, place[int(rng.integers(2))])
            )
        case "fuse" | "fuse_loops":
            return Step(primitive, (loop, other))
        case "distribute":
            return Step(primitive, (loop, other, *(("e",) if number > 3 else ())))
        case "distribute each":
            return Step("distribute", (loop,))
        case "specialize":
            at = f"{loop[:-2]}.o" if loop.endswith(".i") and number > 2 else other
            return Step(primitive, (loop, at))
        case "jam":
            nested = [
                path
                for path in (
                    tuple(s.var.name for s in p if isinstance(s, For)) for p in paths(program.body)
                )
                if path
            ]
            path = nested[int(rng.integers(len(nested)))]
            begin = int(rng.integers(len(path)))
            chosen = path[begin : begin + 1 + number % 2]
            more = ((), ("", 2), ("", 4), (other,), (other, 3))[number % 5]
            return Step(primitive, (chosen, *more))
        case "rename":
            return Step(primitive, (loop, other, f"{loop}.own"))
        case "rename all":
            return Step("rename", (loop, "", other if number > 2 else f"{loop}.own"))
        case "fold_apart":
            return Step(primitive, (loop, *((other,) if number > 3 else ())))
        case "add_loops":
            return Step(
                primitive, (("t", other)[: 1 + number // 4], (number, 2)[: 1 + number // 4], loop)
            )
        case "inline":
            return Step(primitive, (str(rng.choice(private or [""])),))
        case "replicate":
            return Step(primitive, (str(rng.choice(private or [""])), ("t",)))
        case "reorder":
            return Step(
                primitive, ((loop, other) if number < 4 else tuple(names[number - 4 : number - 1]),)
            )
        case "rfactor":
            return Step(primitive, (loop, number, int(rng.integers(1, 4))))
        case "cascade":
            return Step(primitive, (number // 2 + 2,))
        case "contract":
            return Step(primitive, (buffers[int(rng.integers(len(buffers)))] if buffers else "",))
        case "cache_read":
            return Step(primitive, (everything[int(rng.integers(len(everything)))], loop))
        case "cache_write":
            layout = ("rows", "transposed")[int(rng.integers(2))]
            return Step(primitive, (everything[int(rng.integers(len(everything)))], loop, layout))
        case "add_unit_loop":
            return Step(primitive, (f"once{number}",))
        case "stream" | "atomic":
            return Step(primitive, (everything[int(rng.integers(len(everything)))],))
        case "prefetch":
            return Step(primitive, (everything[int(rng.integers(len(everything)))], loop, number))
        case "prefetch_next":
            buffer = everything[int(rng.integers(len(everything)))]
            return Step(primitive, (buffer, (loop,), other))
        case "hoist":
            source = ("source",) if number > 3 else ()
            return Step(primitive, (loop, (loop, other)[number % 2], number, *source))
        case "fuse_first":
            hoisted = [name for name in names if ".h." in name]
            first = hoisted[int(rng.integers(len(hoisted)))] if hoisted else loop
            at, _, second = first.partition(".h.") if number > 1 else (other, "", loop)
            return Step(primitive, (first, second, at))
        case "fuse_last":
            rest = [name for name in names if name.endswith(".t")]
            last = rest[int(rng.integers(len(rest)))] if rest else loop
            inner = (f"{last[:-2]}.i",) if number > 3 else ()
            return Step(primitive, (last, (f"{last[:-2]}.o", *inner)))
        case "bind":
            kind = ("block", "thread")[int(rng.integers(2))]
            return Step(primitive, ((loop, other) if number > 3 else loop, kind))
    name, _, tail = primitive.partition(" ")
    return Step(name, (loop, number, tail) if tail else (loop,))


def likely(primitive: str, schedule: Schedule, rng: np.random.Generator) -> Schedule:
    """The schedule after a few attempts at steps that make `primitive` applicable more often."""
    if primitive == "unswitch":
        schedule = attempt("split shift", schedule, rng, 6)
    if primitive in ("inline", "replicate"):
        schedule = attempt("contract", attempt("fuse_loops", schedule, rng, 12), rng, 6)
    prefix = {
        "branch": "split mask",
        "version": "split mask",
        "jam": "split mask",
        "contract": "fuse_loops",
        "distribute": "expand",
        "cache_write": "split",
        "sink": "expand",
        "fold_apart": "split",
        "replicate": "add_loops",
        "coalesce": "cache_write",
        "distribute each": "fuse_loops",
        "cache_read": "split",
        "cache_read loops": "split",
        "pad": "expand",
        "transform_layout": "expand",
        "cache_read along": "split guard",
        "prefetch": "vectorize",
        "fuse_first": "hoist",
        "fuse_last": "split",
        "prefetch_next": "split",
        "specialize": "split shift",
        "unswitch": "reorder",
    }.get(primitive)
    return attempt(prefix, schedule, rng, 12) if prefix else schedule


def attempt(primitive: str, schedule: Schedule, rng: np.random.Generator, tries: int) -> Schedule:
    for _ in range(tries):
        try:
            schedule = schedule.apply(candidate(primitive, schedule.program, rng))
        except ScheduleError:
            continue
    return schedule


@pytest.mark.parametrize("primitive", ANY)
def test_each_primitive_keeps_the_meaning(
    primitive, random_program, random_product, random_updates, assert_same
) -> None:
    accepted = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        make = (
            random_updates
            if primitive == "atomic"
            else random_product
            if primitive in OF_PRODUCTS
            else random_program
        )
        made = make(seed, F32 if primitive == "cascade" else I32)
        program, inputs = made.loops(), made.inputs()
        before = likely(primitive, Schedule(program), rng)
        after = attempt(
            primitive,
            before,
            rng,
            12 if primitive in ("fuse_loops", "cache_read along", *OF_PRODUCTS) else 3,
        )
        has_effect = primitive not in ("cascade", "branch", "version") or str(after) != str(before)
        if len(after.trace) > len(before.trace) and has_effect:
            accepted += 1
            assert_same(program, after.program, inputs)
    assert accepted >= 5, "the generator never reaches this primitive"


@pytest.mark.parametrize("seed", range(60))
def test_chains_keep_the_meaning_and_replay(seed, random_program, assert_same) -> None:
    rng = np.random.default_rng(1000 + seed)
    made = random_program(seed + 500)
    program, inputs = made.loops(), made.inputs()
    schedule = Schedule(program)
    for _ in range(25):
        primitive = UNBOUND[int(rng.integers(len(UNBOUND)))]
        schedule = attempt(primitive, schedule, rng, 1)
    assert_same(program, schedule.program, inputs)
    schedule = attempt("bind", schedule, rng, 6)
    assert_same(program, schedule.program, inputs)
    trace = [Step.from_json(step.to_json()) for step in schedule.trace]
    assert str(replay(program, trace)) == str(schedule)


@pytest.mark.parametrize("seed", range(20))
def test_chains_on_products(seed, random_product, assert_same) -> None:
    rng = np.random.default_rng(3000 + seed)
    made = random_product(seed)
    program, inputs = made.loops(), made.inputs()
    schedule = Schedule(program)
    for _ in range(25):
        primitive = UNBOUND[int(rng.integers(len(UNBOUND)))]
        schedule = attempt(primitive, schedule, rng, 2)
    assert_same(program, schedule.program, inputs)


@pytest.mark.parametrize("seed", range(10))
def test_chains_on_floats(seed, random_program, assert_same) -> None:
    rng = np.random.default_rng(2000 + seed)
    made = random_program(seed + 700, F32)
    program, inputs = made.loops(), made.inputs()
    schedule = Schedule(program)
    for _ in range(15):
        primitive = UNBOUND[int(rng.integers(len(UNBOUND)))]
        schedule = attempt(primitive, schedule, rng, 1)
    assert_same(program, schedule.program, inputs)
