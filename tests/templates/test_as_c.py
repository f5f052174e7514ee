"""The functions of conftest.py as C, by the system's compiler, with parameters of all kinds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.runtime.measure import bind_kernel
from hlo_mlc.target import cpu
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.core import TensorProgram

# Two targets with vectors of different widths; the second draws the parameters of its nests.
DRAWS = ("x86-64", "x86-64-v4")


def drawn(program: TensorProgram, target: cpu.CpuTarget, rng: np.random.Generator):
    """The loops of a program with drawn parameters."""
    tuned = {
        n: (
            d.template.name,
            {
                key: int(rng.choice(values))
                for key, values in d.template.space(d.nest, target).items()
            },
        )
        for n, d in enumerate(schedule_program(program, target)[1])
    }
    return schedule_program(program, target, tuned)[0]


@pytest.mark.parametrize("level", DRAWS)
def test_every_template_is_right(samples, as_c, level: str) -> None:
    """Without a warning, and with traps where C leaves open what happens."""
    target, seed = cpu.named(level), DRAWS.index(level)
    rng = np.random.default_rng(seed)
    taken = samples(seed)
    programs = list(dict.fromkeys(p for s in taken.values() for p in s.parts.programs))
    loops = [drawn(p, target, rng) if seed else schedule_program(p, target)[0] for p in programs]
    flags = ("-O1", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error") if seed else ()
    compiled = dict(zip(programs, as_c(loops, *flags), strict=True))

    def execute(program: TensorProgram, operands):
        inputs = [np.ascontiguousarray(a) for a in operands]
        outputs = [np.full(b.shape, 85, np.uint8).astype(b.dtype.numpy) for b in program.results]
        bind_kernel(compiled[program], inputs, outputs)()
        return outputs

    wrong = {}
    for function, subject in taken.items():
        try:
            subject.check(execute)
        except AssertionError as error:
            wrong[function] = str(error)
    assert not wrong, "\n".join(f"{function} {why}" for function, why in wrong.items())


# Of x: [n, m] and y: [m, k], with numbers that are none among them.
SPECIAL = {
    "map": lambda x, y: (jnp.tanh(x) * jnp.exp(-x) + jnp.maximum(x, 0.5), jnp.minimum(x, -x) / x),
    "rows": lambda x, y: (x.sum(1), x.max(1), jnp.argmax(x, 1), jax.nn.softmax(x)),
    "columns": lambda x, y: (x.sum(0), x.min(0)),
    "scan": lambda x, y: jnp.cumsum(x, 1),
    "product": lambda x, y: jnp.log1p(jnp.abs(x @ y)),
    "transpose": lambda x, y: x.T * 2,
    "integers": lambda x, y: (x.astype(jnp.int32) // 3, (x > y[:1, :1]).sum(1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_it_computes_what_llvms_code_does(
    take_apart, machine_code, as_c, arrays, dtype: str
) -> None:
    """Bit by bit, but for NaNs: the same loops, for a processor without multiply-add."""
    target = cpu.named("x86-64")
    with jax.enable_x64(True):
        cases = [
            (name, arrays(dtype, (n, m), (m, k), special=True))
            for name in SPECIAL
            for n, m, k in ((3, 37, 5), (66, 20, 17))
        ]
        taken = [(name, args, take_apart(SPECIAL[name], *args)) for name, args in cases]
    programs = list(dict.fromkeys(p for *_, parts in taken for p in parts.programs))
    codes = dict(
        zip(
            programs,
            as_c([schedule_program(p, target)[0] for p in programs], "-O2", "-march=x86-64"),
            strict=True,
        )
    )

    def as_c_does(program: TensorProgram, operands):
        outputs = [np.zeros(b.shape, b.dtype.numpy) for b in program.results]
        bind_kernel(codes[program], [np.ascontiguousarray(a) for a in operands], outputs)()
        return outputs

    for name, args, parts in taken:
        for ours, theirs in zip(
            parts.run(args, as_c_does),
            parts.run(args, machine_code.executing(target=target)),
            strict=True,
        ):
            np.testing.assert_array_equal(ours.astype(np.float64), theirs.astype(np.float64), name)
