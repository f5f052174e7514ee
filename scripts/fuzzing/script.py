"""A program as a script that runs by itself and compares with XLA."""

from __future__ import annotations

import inspect
from types import ModuleType

import jax

from fuzzing import data, foreign, refusing, ways
from fuzzing.families import text_of
from fuzzing.ledger import Setting
from fuzzing.modes import WAYS
from fuzzing.program import Program, source
from fuzzing.worker import Outcome, arguments


def script(program: Program, outcome: Outcome | None, setting: Setting) -> str:
    """Python that needs JAX and hlo_mlc alone."""
    with jax.enable_x64(program.x64):
        text = source(program, text_of(program))
    types = [(a.shape, str(a.dtype)) for a in arguments(program)]
    found = (
        ""
        if outcome is None
        else "".join(f"# {line}\n" for line in f"{outcome.kind}: {outcome.detail}".splitlines())
    )
    return "".join(
        (
            f"# {setting}\n",
            found,
            f"# mode {program.mode}; {program.data} data\n",
            _code(data),
            _HEAD.format(
                x64=program.x64, target="cpu" if setting.target == "gpu" else setting.target
            ),
            _code(_PRINTED[program.mode]) + "\n\n" if program.mode in _PRINTED else "",
            _code(foreign) + "\n\n" if "foreign(" in text else "",
            text,
            _TAIL.format(
                kind=program.data,
                seed=program.seed,
                types=types,
                choose=setting.choose,
                cuts=f"refusing({program.mode_numbers[0]})"
                if program.mode == "refused"
                else "contextlib.nullcontext()",
            ),
        )
    )


def _code(module: ModuleType) -> str:
    """A module's text without its docstring."""
    text = inspect.getsource(module).partition('"""\n\n')[2]
    return text.replace("from __future__ import annotations\n\n", "", 1)


_PRINTED = {"refused": refusing} | dict.fromkeys(WAYS, ways)
_HEAD = """
import contextlib
import functools
import os

os.environ["XLA_FLAGS"] = "--xla_cpu_experimental_ynn_fusion_type="
os.environ["HLO_MLC_TARGET"] = {target!r}
import jax
import jax.numpy as jnp
from jax import lax

import hlo_mlc

jax.config.update("jax_enable_x64", {x64})


"""
_TAIL = """

args = arrays({kind!r}, {seed}, {types})
expected = jax.tree.leaves(jax.jit(build(lambda f, **_: f))(*args))
with {cuts}:
    ours = jax.tree.leaves(
        build(functools.partial(hlo_mlc.mlc_jit, choose={choose!r}))(*map(jnp.array, args)))
for number, (one, other) in enumerate(zip(ours, expected, strict=True)):
    same = np.array_equal(one, other) or np.allclose(
        np.asarray(one, float), np.asarray(other, float), equal_nan=True)
    print(f"result {{number}}:", "same" if same else f"\\n{{one}}\\nwhere XLA has\\n{{other}}")
"""
