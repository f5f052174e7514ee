"""Copies of a body side by side: each instruction behind its operands, memory in its order."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.codegen.cpu.block import Instruction, Kind
from hlo_mlc.codegen.cpu.interleave import BRANCHING, SHORTEST, interleave
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program

REGISTERS = 32


def instruction(
    name: str | None, *pieces: str, lanes: int = 16, kind: Kind = Kind.COMPUTE
) -> Instruction:
    return name, lanes, kind, pieces


def chain(number: int, length: int = SHORTEST, last: Kind = Kind.WRITE) -> list[Instruction]:
    """A load, a chain of operations on it, and an effect.  Its text says nothing."""
    names = [f"a{number}_{k}" for k in range(length)]
    return [
        instruction(names[0], "", f"p{number}"),
        *(instruction(y, "", x, "", x) for x, y in itertools.pairwise(names)),
        instruction(None, "", names[-1], "", f"q{number}", kind=last),
    ]


def check_order(merged: list[Instruction], copies: list[list[Instruction]]) -> None:
    assert sorted(map(id, merged)) == sorted(id(one) for copy in copies for one in copy)
    for copy in copies:
        own = {*map(id, copy)}
        assert [one for one in merged if id(one) in own] == copy
    names = {name for name, *_ in merged}
    seen: set[str | None] = set()
    for name, _, _, pieces in merged:
        assert names & {*pieces[1::2]} <= seen
        seen.add(name)


def test_chains_take_turns() -> None:
    copies = [chain(n) for n in range(3)]
    merged = interleave(copies, REGISTERS, frozenset(), "b0")
    check_order(merged, copies)
    assert merged == [copy[k] for k in range(len(copies[0])) for copy in copies]


def test_short_bodies_stay_as_they_are() -> None:
    copies = [chain(n, length=3) for n in range(3)]
    assert interleave(copies, REGISTERS, frozenset(), "b0") == [
        one for copy in copies for one in copy
    ]


def test_what_the_first_copy_computed_for_all_comes_before_its_uses() -> None:
    """The other copies use a value that the first one happens to define late."""
    first, second = chain(0), chain(1)
    first.insert(-1, instruction("shared", "", "outside"))
    second[2] = instruction("a1_2", "", "a1_1", "", "shared")
    merged = interleave([first, second], REGISTERS, frozenset(), "b0")
    check_order(merged, [first, second])
    assert merged.index(second[1]) < merged.index(first[-2]) < merged.index(second[2])


def test_reads_of_what_may_be_written_stay_behind_the_writes_before() -> None:
    copies = [chain(n) for n in range(2)]
    copies[1][0] = instruction("a1_0", "", "p1", kind=Kind.READ)
    assert interleave(copies, REGISTERS, frozenset(), "b0") == [*copies[0], *copies[1]]


def test_reads_of_what_no_copy_writes_hold_nothing_up() -> None:
    """Their kind is the alias class that they read."""
    copies = [chain(n) for n in range(2)]
    for number, copy in enumerate(copies):
        copy[0] = (f"a{number}_0", 16, 3, ("", f"p{number}"))
    merged = interleave(copies, REGISTERS, {4}, "b0")
    check_order(merged, copies)
    assert merged == [copy[k] for k in range(len(copies[0])) for copy in copies]
    assert interleave(copies, REGISTERS, {3, 4}, "b0") == [*copies[0], *copies[1]]


def test_facts_count_and_no_text() -> None:
    """A computation that is called like a load holds nothing up, nor does a name within a piece."""
    copies = [chain(n) for n in range(2)]
    copies[1][0] = instruction("a1_0", "load %a0_9 ", "p1")
    merged = interleave(copies, REGISTERS, frozenset(), "b0")
    check_order(merged, copies)
    assert merged[1] is copies[1][0]


def test_prefetches_hold_nothing_up() -> None:
    copies = [[instruction(None, "", f"p{n}", kind=Kind.HINT), *chain(n)] for n in range(2)]
    merged = interleave(copies, REGISTERS, frozenset(), "b0")
    check_order(merged, copies)
    assert merged.index(copies[1][3]) < merged.index(copies[0][-1])


@pytest.mark.parametrize(("alive", "abreast"), [(1, 8), (7, 4), (14, 2), (30, 1)])
def test_as_many_chains_as_there_are_registers_for(alive: int, abreast: int) -> None:
    copies = []
    for n in range(8):
        begin = [instruction(f"b{n}_{k}", "", "x") for k in range(alive)]
        total = [
            instruction(f"s{n}_{k}", "", f"s{n}_{k - 1}", "", f"b{n}_{k}") for k in range(alive)
        ]
        rest = [instruction(f"c{n}_{k}", "", "i", lanes=0) for k in range(SHORTEST)]
        copies.append([*begin, *total, *rest])
    merged = interleave(copies, REGISTERS, frozenset(), "b0")
    check_order(merged, copies)
    started = [n for n in range(8) if merged.index(copies[n][0]) < merged.index(copies[0][-1])]
    assert len(started) == abreast


def test_numbers_take_no_registers_of_vectors() -> None:
    copies = [
        [instruction(f"b{n}_{k}", "", "i", lanes=0) for k in range(30)]
        + [instruction(None, "", f"b{n}_{k}") for k in range(30)]
        for n in range(2)
    ]
    assert interleave(copies, REGISTERS, frozenset(), "b0")[1] is copies[1][0]


def test_machine_code_of_interleaved_copies(machine, target) -> None:
    count, lanes, copies = 96, 8, 4
    x, y = Buffer("x", F32, (count,), "operand"), Buffer("y", F32, (count,), "result")
    outer, copy, lane = (
        variable("o", count // lanes // copies),
        variable("c", copies),
        variable("l", lanes),
    )
    where = index.add(
        index.multiply(outer, index.constant(copies * lanes)),
        index.add(index.multiply(copy, index.constant(lanes)), lane),
    )
    value = load(x, (where,))
    for _ in range(SHORTEST):
        value = apply("add", apply("mul", value, value), const(0.25, F32))
    program = LoopProgram(
        "chains",
        (x,),
        (y,),
        (
            For(
                outer,
                index.constant(count // lanes // copies),
                LoopKind.SERIAL,
                (
                    For(
                        copy,
                        index.constant(copies),
                        LoopKind.UNROLL,
                        (
                            For(
                                lane,
                                index.constant(lanes),
                                LoopKind.VECTORIZE,
                                (Store(y, (where,), value),),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )
    loads = [
        k
        for k, line in enumerate(print_program(program, target).splitlines())
        if "= load <8 x float>" in line
    ]
    assert len(loads) == copies and loads[-1] - loads[0] < SHORTEST
    given = np.random.default_rng(0).uniform(-0.7, 0.7, count).astype(np.float32)
    expected = given
    for _ in range(SHORTEST):
        expected = expected * expected + np.float32(0.25)
    (actual,) = machine.run(program, [given], target=target)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def branching(number: int, before: str, length: int = BRANCHING) -> list[Instruction]:
    """A chain, a branch around what is rare of its result, and a chain on what comes of it."""
    n, (*chained, _) = number, chain(number, length // 2)
    last, joined = chained[-1][0], f"j{n}"
    return [
        *chained,
        instruction(f"t{n}", "any ", last, lanes=0),
        instruction(
            None,
            "br i1 ",
            f"t{n}",
            ", label %",
            f"s{n}",
            ", label %",
            f"d{n}",
            "",
            kind=Kind.CONTROL,
        ),
        instruction(None, "", f"s{n}", ":", kind=Kind.LABEL),
        instruction(f"r{n}", "", last),
        instruction(None, "br label %", f"d{n}", kind=Kind.CONTROL),
        instruction(None, "", f"d{n}", ":", kind=Kind.LABEL),
        instruction(joined, "phi [ ", last, ", %", before, " ], [ ", f"r{n}", ", %", f"s{n}", " ]"),
        *(
            instruction(f"z{n}_{k}", "", f"z{n}_{k - 1}" if k else joined)
            for k in range(length // 2)
        ),
        instruction(None, "", f"z{n}_{length // 2 - 1}", "", f"q{n}", kind=Kind.WRITE),
    ]


def test_branches_are_taken_as_one() -> None:
    """What is rare follows for each copy, and what comes of either way is of the blocks before."""
    copies = [branching(0, "b0"), branching(1, "d0"), branching(2, "d1")]
    merged = interleave(copies, REGISTERS, frozenset(), "b0")
    control = [pieces[1::2] for _, _, kind, pieces in merged if kind is Kind.CONTROL]
    assert control == [("%s2.any", "s0", "d2"), ("s1",), ("s2",), ("d2",)]
    assert [pieces[1] for _, _, kind, pieces in merged if kind is Kind.LABEL] == [
        *("s0", "s1", "s2", "d2")
    ]
    assert [pieces[1:8:2] for *_, pieces in merged if pieces[0] == "phi [ "] == [
        (f"a{n}_{BRANCHING // 2 - 1}", "b0", f"r{n}", "s2") for n in range(3)
    ]
    names = [name for name, *_ in merged]
    assert names.index("a2_1") < names.index("a0_2")
    assert names.index("z2_1") < names.index("z0_2")
    assert [pieces[3] for *_, kind, pieces in merged if kind is Kind.WRITE] == ["q0", "q1", "q2"]
    seen: set[str | None] = set()
    for name, _, _, pieces in merged:
        assert {*names} & {*pieces[1::2]} <= seen
        seen.add(name)


@pytest.mark.parametrize("shared", [2, 6])
def test_branches_on_one_condition(shared: int) -> None:
    """What is asked once for all copies, or for some of them, is taken as it is."""
    copies = [branching(n, f"d{n - 1}" if n else "b0") for n in range(6)]
    for copy in copies[:shared]:
        place = next(k for k, one in enumerate(copy) if one[2] is Kind.CONTROL)
        name, lanes, kind, pieces = copy[place]
        copy[place] = (name, lanes, kind, (pieces[0], "all", *pieces[2:]))
    merged = interleave(copies, REGISTERS, frozenset(), "b0")
    defined = [name for name, *_ in merged if name is not None]
    assert len(defined) == len({*defined})
    together = [pieces[1::2] for _, _, _, pieces in merged if pieces[0] == "or i1 "]
    assert [one for pair in together for one in pair if not one.endswith(".any")] == (
        [] if shared == 6 else ["all", "t2", "t3", "t4", "t5"]
    )


@pytest.mark.parametrize("reason", ["short", "writes before", "other branch", "uses what is later"])
def test_branches_that_stay_as_they_are(reason: str) -> None:
    copies = [
        branching(0, "b0", SHORTEST if reason == "short" else BRANCHING),
        branching(1, "d0", SHORTEST if reason == "short" else BRANCHING),
    ]
    if reason == "writes before":
        copies[1].insert(1, instruction(None, "", "a1_0", "", "q1", kind=Kind.WRITE))
    elif reason == "other branch":
        copies[1] = [one for one in copies[1] if not one[3][0].startswith("phi")]
    elif reason == "uses what is later":
        copies[1][2] = instruction("a1_2", "", "a1_1", "", "z0_3")
    merged = interleave(copies, REGISTERS, frozenset(), "b0")
    assert merged == [*copies[0], *copies[1]]


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("size", [16384, 16429])
def test_rare_cases_of_some_copies(machine_code, take_apart, level: str, size: int) -> None:
    x = np.random.default_rng(0).uniform(0.1, 9, size).astype(np.float32)
    x[[5, 70, 71, 16_000, size - 1]] = 1e9, 3e38, np.inf, np.nan, 1e7

    def function(x):
        return jnp.sin(x) * jnp.exp(-jnp.cos(x + 1)) + jnp.log(x) * jnp.tanh(x)

    parts = take_apart(function, x)
    execute = machine_code.executing(target=named(level), threads=2, fence_at="end")
    with np.errstate(invalid="ignore"):
        exact = np.asarray(x, np.float64)
        exact = np.sin(exact) * np.exp(-np.cos((x + np.float32(1)).astype(np.float64))) + np.log(
            exact
        ) * np.tanh(exact)
    np.testing.assert_allclose(parts.run((x,), execute)[0], exact, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("base", [2.5, -2.0, 0.0, np.nan])
def test_rare_cases_of_all_lanes(machine_code, take_apart, level: str, base: float) -> None:
    """Whether a base is negative is asked once for all its powers."""
    x = np.random.default_rng(0).integers(-9, 9, 16429).astype(np.float32)
    parts = take_apart(jnp.power, base := np.float32(base), x)
    execute = machine_code.executing(target=named(level), threads=2, fence_at="end")
    with np.errstate(divide="ignore"):
        exact = np.power(np.float64(base), x.astype(np.float64))
    np.testing.assert_allclose(parts.run((base, x), execute)[0], exact, rtol=2e-6)


def test_folds_branch_as_one(machine_code, take_apart) -> None:
    """What they have folded so far waits in registers."""
    x = np.random.default_rng(0).uniform(0.1, 9, (4, 256)).astype(np.float32)
    x[1, [5, 200]] = 0, 1e-40

    def function(x):
        return jnp.sum(jnp.tanh(jnp.log(x + x)) * jnp.exp(-x), 1)

    parts, target = take_apart(function, x), named("x86-64-v4")
    (program,) = parts.programs
    loops, _ = schedule_program(program, target)
    assert print_program(loops, target, False).count("!prof !2") == 1
    exact = x.astype(np.float64)
    exact = (np.tanh(np.log(np.maximum(exact, 1e-300) * 2)) * np.exp(-exact)).sum(1)
    execute = machine_code.executing(target=target, threads=2, fence_at="end")
    np.testing.assert_allclose(parts.run((x,), execute)[0], exact, rtol=1e-5)
