"""Kernels arrive in another process as what they were."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.target.cpu import host
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.text import program_text
from hlo_mlc.tuning.transport import pack, unpack

X = np.ones((17, 33), np.float32)

FUNCTIONS = {
    "softmax": jax.nn.softmax,
    "padded": lambda x: jnp.pad(x, 1) * -0.0 + jnp.inf,
    "argmax": lambda x: jnp.argmax(x, 1),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, v: v.at[1:].set(jnp.sin(v[:-1])), x),
    "narrow": lambda x: x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16).T,
}


def deep(x: jax.Array) -> jax.Array:
    for n in range(800):
        x = x * 1.5 + n
    return x


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_text_and_code(take_apart, name: str) -> None:
    for program in take_apart(FUNCTIONS[name], X).programs:
        arrived = unpack(pack(program))
        assert program_text(arrived) == program_text(program)
        sources = [
            print_program(schedule_program(p, host())[0], host()) for p in (program, arrived)
        ]
        assert sources[0] == sources[1]


def test_deep_expressions(take_apart) -> None:
    for program in take_apart(deep, X).programs:
        assert program_text(unpack(pack(program))) == program_text(program)


def test_into_another_process(take_apart) -> None:
    (program,) = take_apart(FUNCTIONS["argmax"], X).programs
    script = (
        "import sys; from hlo_mlc.tuning.transport import unpack;"
        "from hlo_mlc.tensor.text import program_text;"
        "sys.stdout.write(program_text(unpack(sys.stdin.buffer.read())))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], input=pack(program), check=True, capture_output=True
    )
    assert ran.stdout.decode() == program_text(program)
