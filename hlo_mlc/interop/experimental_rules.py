"""What makes a primitive a call to JAX's experimental transformations, which keep their rules in
tables of their own: Taylor series (`jet`), sparse matrices, and the check that keys are used once.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
from jax._src import core
from jax.experimental import jet
from jax.experimental.key_reuse import _core as key_reuse

_SPARSE = "jax.experimental.sparse.transform"


def register_experimental_rules(primitive: jex.Primitive) -> None:
    """Gives a primitive with a parameter `call_jaxpr` the rules that `jit` has there."""
    jet.jet_rules[primitive] = partial(_jet, primitive)
    key_reuse.key_reuse_signatures[primitive] = key_reuse.dynamic_key_reuse_signature(
        lambda equation: key_reuse.jaxpr_type_signature(_open(equation.params["call_jaxpr"]))
    )


def register_sparse_rule(primitive: jex.Primitive) -> None:
    """The same for sparse matrices, if they are loaded: that takes as long as JAX does, with SciPy.
    To be called whenever there is a call of the primitive."""
    if _SPARSE in sys.modules:
        sys.modules[_SPARSE].sparse_rules_bcoo.setdefault(primitive, partial(_sparsify, primitive))


def _open(call_jaxpr: Any) -> Any:
    """Without its constants; from JAX 0.11 on, there is no jaxpr without them."""
    return call_jaxpr.jaxpr if hasattr(call_jaxpr, "jaxpr") else call_jaxpr


def _jet(
    primitive: core.Primitive, primals: Any, series: Any, *, call_jaxpr: Any, **params: Any
) -> Any:
    flat, tree = jax.tree.flatten((primals, series))
    types = tuple(map(core.shaped_abstractify, flat))
    jaxpr, out_tree = jet._jet_jaxpr(call_jaxpr, len(series[0]), types, tree)
    return jax.tree.unflatten(out_tree(), primitive.bind(*flat, call_jaxpr=jaxpr, **params))


def _sparsify(
    primitive: core.Primitive, environment: Any, *values: Any, call_jaxpr: Any, **params: Any
) -> Any:
    rules = sys.modules[_SPARSE]
    jaxpr, out_tree = rules._sparsify_jaxpr(environment, call_jaxpr, *values)
    flat = jax.tree.leaves(rules.spvalues_to_arrays(environment, values))
    outs = primitive.bind(*flat, call_jaxpr=jaxpr, **params)
    return rules.arrays_to_spvalues(environment, jax.tree.unflatten(out_tree, outs))
