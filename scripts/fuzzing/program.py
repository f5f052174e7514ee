"""A random program as data: typed inputs, steps and outputs that print as a few lines of Python."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fuzzing.data import table
from fuzzing.foreign import foreign
from fuzzing.modes import build_text
from fuzzing.ways import ahead_of_time, in_place_of_jit, through_file, through_module

Kernel = Callable[..., Callable]
"""What compiles a function: `mlc_jit` with its choice, or nothing at all for the reference."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A value of a program: its name and its type."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.name

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def kind(self) -> str:
        """`f` for floats of any width, `i`, `u`, `b` for bool, `c` for complex numbers."""
        dtype = jnp.dtype(self.dtype)
        return "f" if jnp.issubdtype(dtype, jnp.floating) else dtype.kind


@dataclass(frozen=True, slots=True)
class Step:
    """One operation: its family, the values it reads and the numbers it drew.

    The text follows from these and the operands' types (`families`), so that a program whose
    inputs became smaller still means something.
    """

    family: str
    operands: tuple[str, ...]
    numbers: tuple[int, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """Inputs, steps, outputs; how it is called (`mode`, see modes.py) and with what (`data`)."""

    seed: int
    inputs: tuple[Operand, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    mode: str
    mode_numbers: tuple[int, ...]
    data: str
    x64: bool

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Program:
        fields = json.loads(text)
        inputs = tuple(Operand(i["name"], i["dtype"], tuple(i["shape"])) for i in fields["inputs"])
        steps = tuple(
            Step(s["family"], *(tuple(s[f]) for f in ("operands", "numbers", "results")))
            for s in fields["steps"]
        )
        return cls(
            **fields
            | {
                "inputs": inputs,
                "steps": steps,
                "outputs": tuple(fields["outputs"]),
                "mode_numbers": tuple(fields["mode_numbers"]),
            }
        )

    def replace(self, **changes: object) -> Program:
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Text:
    """The lines of a program's steps, and the type of every value."""

    lines: tuple[str, ...]
    values: Mapping[str, Operand]


NAMESPACE = {
    "jax": jax,
    "jnp": jnp,
    "lax": lax,
    "np": np,
    "table": table,
    "foreign": foreign,
    "through_module": through_module,
    "ahead_of_time": ahead_of_time,
    "through_file": through_file,
    "in_place_of_jit": in_place_of_jit,
}


class UnfitError(Exception):
    """A step does not apply to these operands."""


def identity(function: Callable, **options: object) -> Callable:
    """The kernel of references: nothing is compiled."""
    return function


def types_of(
    line: str, operands: Iterable[Operand], results: tuple[str, ...]
) -> tuple[Operand, ...]:
    """The types of what an expression gives.

    Raises: UnfitError where JAX refuses it, or has another number of results.
    """
    operands = tuple(operands)

    def step(*values: jax.Array) -> object:
        scope = {o.name: v for o, v in zip(operands, values, strict=True)}
        return eval(line, NAMESPACE | {"kernel": identity} | scope)

    arguments = [jax.ShapeDtypeStruct(o.shape, jnp.dtype(o.dtype)) for o in operands]
    try:
        leaves = jax.tree.leaves(jax.eval_shape(step, *arguments))
    except Exception as error:  # whatever JAX says of shapes and types
        raise UnfitError(f"{line}: {error}") from error
    if len(leaves) != len(results):
        raise UnfitError(f"{line} has {len(leaves)} results")
    return tuple(
        Operand(name, str(leaf.dtype), tuple(leaf.shape))
        for name, leaf in zip(results, leaves, strict=True)
    )


def source(program: Program, text: Text) -> str:
    """`program(…)` and `build(kernel)`: what calls it in its mode, compiled by `kernel`."""
    parameters = ", ".join(i.name for i in program.inputs)
    returned = ", ".join(program.outputs)
    lines = [
        f"def program({parameters}, kernel=lambda f: f):",
        *(f"    {line}" for line in text.lines),
        f"    return ({returned},)",
        "",
        "",
        *build_text(program, text),
    ]
    return "\n".join(lines) + "\n"


def load(text: str, kernel: Kernel) -> Callable:
    """The function that a program's source builds with this kernel."""
    scope = dict(NAMESPACE)
    exec(compile(text, "<random program>", "exec"), scope)
    return scope["build"](kernel)
