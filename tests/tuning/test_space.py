"""The space of a kernel: what the templates of its costliest nests offer."""

from __future__ import annotations

import random
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.loops.verify import verify
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.contraction import ContractionTemplate
from hlo_mlc.templates.program import decisions_of, schedule_program
from hlo_mlc.tuning.generator import TemplateGenerator
from hlo_mlc.tuning.replay import schedule_as_recorded
from hlo_mlc.tuning.space import MOST_NESTS, Parameter, Space, TemplateChoice, key_of

# What is expected of choices does not depend on the machine that the tests run on.
TARGET = named("x86-64-v4")

GENERATOR = TemplateGenerator()
SMALL = Space((Parameter(0, "a", "x", (1, 2, 4), 2), Parameter(3, "b", "y", (0, 1), 0)))
TEMPLATES = Space(
    (
        Parameter(0, "a", "x", (1, 2, 4), 2),
        Parameter(0, "b", "x", (1, 2), 1),
        Parameter(3, "b", "y", (0, 1), 0),
    ),
    (TemplateChoice(0, ("a", "b", "c")),),
)


def text_of(program, schedules) -> str:
    return print_program(schedule_program(program, TARGET, schedules)[0], TARGET)


def test_all_of_a_space_from_its_default_on() -> None:
    found = list(SMALL.all())
    assert found[0] == SMALL.default == {"0.a.x": 2, "3.b.y": 0}
    assert len(found) == SMALL.size == 6
    assert len({tuple(c.items()) for c in found}) == 6


def test_schedules_and_back() -> None:
    for configuration in SMALL.all():
        schedules = SMALL.schedules(configuration)
        assert schedules[0][0] == "a" and set(schedules) == {0, 3}
        assert SMALL.configuration(schedules) == configuration
    assert SMALL.configuration({}) == SMALL.default
    assert SMALL.configuration({0: ("a", {"x": 4})}) == {"0.a.x": 4, "3.b.y": 0}


@pytest.mark.parametrize(
    "schedules",
    [{0: ("b", {"x": 1})}, {0: ("a", {"x": 3})}, {0: ("a", {"z": 1})}, {1: ("a", {"x": 1})}],
)
def test_schedules_of_another_space(schedules) -> None:
    assert SMALL.configuration(schedules) is None


def test_templates_with_parameters_of_their_own() -> None:
    found = list(TEMPLATES.all())
    assert found[0] == TEMPLATES.default == {"0.template": "a", "0.a.x": 2, "3.b.y": 0}
    assert len(found) == TEMPLATES.size == (3 + 2 + 1) * 2
    assert len({tuple(sorted(c.items())) for c in found}) == TEMPLATES.size
    for configuration in found:
        schedules = TEMPLATES.schedules(configuration)
        assert schedules[0][0] == configuration["0.template"]
        assert TEMPLATES.configuration(schedules) == configuration
    assert list(TEMPLATES.starts) == [
        TEMPLATES.default,
        {"0.template": "b", "0.b.x": 1, "3.b.y": 0},
        {"0.template": "c", "3.b.y": 0},
    ]
    other = {"0.template": "c", "3.b.y": 1}
    assert TEMPLATES.schedules(other) == {0: ("c", {}), 3: ("b", {"y": 1})}
    assert TEMPLATES.configuration({0: ("b", {})}) == {"0.template": "b", "0.b.x": 1, "3.b.y": 0}
    for strange in ({0: ("d", {})}, {0: ("c", {"x": 1})}, {0: ("b", {"x": 4})}, {1: ("a", {})}):
        assert TEMPLATES.configuration(strange) is None


def test_a_crossing_has_each_nest_of_one_of_two() -> None:
    rng = random.Random(0)
    one = {"0.template": "a", "0.a.x": 4, "3.b.y": 0}
    other = {"0.template": "b", "0.b.x": 2, "3.b.y": 1}
    found = {key_of(TEMPLATES.crossing(one, other, rng)) for _ in range(50)}
    assert found == {key_of(c) for c in (one, other, {**one, "3.b.y": 1}, {**other, "3.b.y": 0})}


FUNCTIONS = {
    "product": lambda x, y: x @ y + 1,
    "columns": lambda x, y: (x * y).sum(0),
    "argmax": lambda x, y: jnp.argmax(x + y, 0),
    "transposed": lambda x, y: x.T * 2 + y,
    "correlated": lambda x, y: jax.lax.conv_general_dilated(
        x[None, :, :, None],
        y[:3, :3, None, None],
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )[0, :, :, 0],
    "gram": lambda x, y: (x * y).T @ x,
    "pooled": lambda x, y: jax.lax.reduce_window(
        x + y, -jnp.inf, jax.lax.max, (3, 3), (1, 1), "VALID"
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_template_that_takes_a_nest_computes_it(
    take_apart, machine_code, arrays, name: str
) -> None:
    x, y = arrays("float32", (37, 37), (37, 37))
    expected = np.asarray(jax.jit(FUNCTIONS[name])(x, y))
    parts = take_apart(FUNCTIONS[name], x, y)
    (program,) = parts.programs
    space = GENERATOR.space(program, machine_code.target)
    starts = list(space.starts)
    assert len(starts) > 1
    texts = set()
    for configuration in starts:
        schedules = space.schedules(configuration)
        loops, decisions = schedule_as_recorded(program, machine_code.target, schedules, GENERATOR)
        verify(loops)
        for choice in space.choices:
            assert decisions[choice.position].template.name == configuration[choice.name]
        texts.add(print_program(loops, machine_code.target))
        (result,) = parts.run((x, y), machine_code.executing(tuned=schedules, fence_at="end"))
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert len(texts) == len(starts), "other templates make other code"


def test_the_default_is_what_nobody_asked_for(product) -> None:
    space = GENERATOR.space(product, TARGET)
    assert {p.key for p in space.parameters} >= {"rows", "vectors"}
    assert all(p.default in p.values and len(p.values) > 1 for p in space.parameters)
    assert text_of(product, space.schedules(space.default)) == text_of(product, {})


def test_sorting_is_left_to_its_template(take_apart) -> None:
    (program,) = take_apart(lambda x: jnp.sort(x, 1), np.ones((8, 300), np.float32)).programs
    space = GENERATOR.space(program, TARGET)
    _, decisions = schedule_program(program, TARGET)
    sorting = [n for n, d in enumerate(decisions) if any(s.sort for s in d.nest.stages)]
    assert sorting
    assert not {c.position for c in space.choices} & set(sorting)


def test_the_costliest_nests_only(take_apart) -> None:
    def layers(x: jax.Array) -> jax.Array:
        for _ in range(12):
            x = jax.nn.softmax(x @ x)
        return x

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda i, v: layers(v), x)

    (program,) = take_apart(loop, np.ones((64, 64), np.float32)).programs
    positions = {p.position for p in GENERATOR.space(program, TARGET).parameters}
    assert 0 < len(positions) <= MOST_NESTS


def test_nests_that_share_code_share_parameters(take_apart) -> None:
    def repeated(x: jax.Array) -> jax.Array:
        def body(i: int, v: jax.Array) -> jax.Array:
            for _ in range(6):
                v = (v @ v) * 0.5
            return v

        return jax.lax.fori_loop(0, 3, body, x)

    (program,) = take_apart(repeated, np.ones((32, 32), np.float32)).programs
    default, _ = schedule_program(program, TARGET)
    space = GENERATOR.space(program, TARGET)
    assert text_of(program, space.schedules(space.default)) == print_program(default, TARGET)
    assert {p.key for p in space.parameters if p.template == "contraction"} >= {"rows", "vectors"}
    assert len({p.position for p in space.parameters if p.template == "contraction"}) < 6
    changed = {**space.default, **{p.name: p.values[0] for p in space.active(space.default)}}
    assert text_of(program, space.schedules(changed)) != print_program(default, TARGET)


def loop_of_products(x: jax.Array) -> jax.Array:
    def body(i: int, v: jax.Array) -> jax.Array:
        for _ in range(4):
            v = jax.nn.softmax((v @ v) * 0.5)
        return jnp.sort(v)

    return jax.lax.fori_loop(0, 3, body, x)


@pytest.mark.parametrize(
    "function", [lambda x: FUNCTIONS["gram"](x, x), jnp.sort, loop_of_products]
)
def test_what_is_chosen_is_known_without_loops(take_apart, function) -> None:
    (program,) = take_apart(function, np.ones((32, 32), np.float32)).programs
    _, scheduled = schedule_program(program, TARGET)
    assert [(d.template.name, d.parameters, d.refused) for d in scheduled] == [
        (d.template.name, d.parameters, d.refused) for d in decisions_of(program, TARGET)
    ]


def test_replaying_schedules_once(product, monkeypatch) -> None:
    schedules = GENERATOR.space(product, TARGET).schedules(GENERATOR.space(product, TARGET).default)
    applied, apply = [], ContractionTemplate.apply
    monkeypatch.setattr(
        ContractionTemplate, "apply", lambda *given: applied.append(1) or apply(*given)
    )
    schedule_as_recorded(product, TARGET, schedules, GENERATOR)
    assert len(applied) == 1


def test_replaying(product) -> None:
    space = GENERATOR.space(product, TARGET)
    for rows in (4, 8):
        schedules = space.schedules({**space.default, "0.contraction.rows": rows})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loops, decisions = schedule_as_recorded(product, TARGET, schedules, GENERATOR)
        assert decisions[0].parameters["rows"] == rows
        assert print_program(loops, TARGET) == text_of(product, schedules)


@pytest.mark.parametrize(
    "schedules",
    [
        {0: ("contraction", {"rows": 1000})},
        {0: ("contraction", {"gone": 1})},
        {0: ("gone", {"rows": 4})},
        {5: ("contraction", {"rows": 4})},
    ],
)
def test_what_templates_do_not_have_any_more(product, schedules) -> None:
    with pytest.warns(RuntimeWarning, match="it gets the default"):
        loops, _ = schedule_as_recorded(product, TARGET, schedules, GENERATOR)
    assert print_program(loops, TARGET) == text_of(product, {})
