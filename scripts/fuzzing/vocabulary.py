"""Which ops of StableHLO and CHLO random programs are made of, as JAX lowers them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jaxlib.mlir import ir

from fuzzing.families import text_of
from fuzzing.generator import generate
from fuzzing.program import identity, load, source
from hlo_mlc.frontend.walking import operations
from hlo_mlc.ops.library_calls import library_op


def ops_of(seed: int) -> Counter[str]:
    """How often each op stands in the program of a seed, those inside of others included."""
    program = generate(seed)
    if program.mode not in ("grad", "jvp"):  # others call the same ops in some other way
        program = program.replace(mode="plain")
    types = [jax.ShapeDtypeStruct(i.shape, jnp.dtype(i.dtype)) for i in program.inputs]
    with jax.enable_x64(program.x64):
        function = load(source(program, text_of(program)), identity)
        module = jax.jit(lambda *args: function(*args)).lower(*types).compiler_ir()
    return Counter(map(_name, operations(module)))


def _name(operation: ir.Operation) -> str:
    """Calls of a library are ops by what they compute."""
    if operation.name != "stablehlo.custom_call":
        return operation.name
    target = ir.StringAttr(operation.attributes["call_target_name"]).value
    return library_op({"call_target_name": target}) or operation.name


def programs_with(seeds: Iterable[int]) -> Counter[str]:
    """In how many programs each op stands."""
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(ops_of(seed).keys())
    return found
