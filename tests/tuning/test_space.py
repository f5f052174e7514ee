"""The space of a kernel: what the templates of its costliest nests offer."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.target.cpu import host
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tuning.generator import TemplateGenerator
from hlo_mlc.tuning.replay import replay
from hlo_mlc.tuning.space import MOST_NESTS, Parameter, Space

GENERATOR = TemplateGenerator()
SMALL = Space((Parameter(0, "a", "x", (1, 2, 4), 2), Parameter(3, "b", "y", (0, 1), 0)))


def text_of(program, schedules) -> str:
    return print_program(schedule_program(program, host(), schedules)[0], host())


def test_all_of_a_space_from_its_default_on() -> None:
    found = list(SMALL.all())
    assert found[0] == SMALL.default == {"0.x": 2, "3.y": 0}
    assert len(found) == SMALL.size == 6
    assert len({tuple(c.items()) for c in found}) == 6


def test_schedules_and_back() -> None:
    for configuration in SMALL.all():
        schedules = SMALL.schedules(configuration)
        assert schedules[0][0] == "a" and set(schedules) == {0, 3}
        assert SMALL.configuration(schedules) == configuration
    assert SMALL.configuration({}) == SMALL.default
    assert SMALL.configuration({0: ("a", {"x": 4})}) == {"0.x": 4, "3.y": 0}


@pytest.mark.parametrize("schedules", [
    {0: ("b", {"x": 1})}, {0: ("a", {"x": 3})}, {0: ("a", {"z": 1})}, {1: ("a", {"x": 1})}])
def test_schedules_of_another_space(schedules) -> None:
    assert SMALL.configuration(schedules) is None


def test_the_default_is_what_nobody_asked_for(product) -> None:
    space = GENERATOR.space(product, host())
    assert {p.key for p in space.parameters} >= {"rows", "vectors"}
    assert all(p.default in p.values and len(p.values) > 1 for p in space.parameters)
    assert text_of(product, space.schedules(space.default)) == text_of(product, {})


def test_the_costliest_nests_only(take_apart) -> None:
    def layers(x: jax.Array) -> jax.Array:
        for _ in range(12):
            x = jax.nn.softmax(x @ x)
        return x

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda i, v: layers(v), x)

    (program,) = take_apart(loop, np.ones((64, 64), np.float32)).programs
    positions = {p.position for p in GENERATOR.space(program, host()).parameters}
    assert 0 < len(positions) <= MOST_NESTS


def test_nests_that_share_code_share_parameters(take_apart) -> None:
    def repeated(x: jax.Array) -> jax.Array:
        def body(i: int, v: jax.Array) -> jax.Array:
            for _ in range(6):
                v = (v @ v) * 0.5
            return v

        return jax.lax.fori_loop(0, 3, body, x)

    (program,) = take_apart(repeated, np.ones((32, 32), np.float32)).programs
    default, _ = schedule_program(program, host())
    space = GENERATOR.space(program, host())
    assert text_of(program, space.schedules(space.default)) == print_program(default, host())
    assert {p.key for p in space.parameters if p.template == "contraction"} >= {"rows", "vectors"}
    assert len({p.position for p in space.parameters if p.template == "contraction"}) < 6
    changed = {p.name: p.values[0] for p in space.parameters}
    assert text_of(program, space.schedules(changed)) != print_program(default, host())


def test_replaying(product) -> None:
    space = GENERATOR.space(product, host())
    for rows in (4, 8):
        schedules = space.schedules({**space.default, "0.rows": rows})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loops, decisions = replay(product, host(), schedules)
        assert decisions[0].parameters["rows"] == rows
        assert print_program(loops, host()) == text_of(product, schedules)


@pytest.mark.parametrize("schedules", [
    {0: ("contraction", {"rows": 1000})}, {0: ("contraction", {"gone": 1})},
    {0: ("gone", {"rows": 4})}, {5: ("contraction", {"rows": 4})}])
def test_what_templates_do_not_have_any_more(product, schedules) -> None:
    with pytest.warns(RuntimeWarning, match="it gets the default"):
        loops, _ = replay(product, host(), schedules)
    assert print_program(loops, host()) == text_of(product, {})
