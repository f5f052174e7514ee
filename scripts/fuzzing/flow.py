"""Equations that run other jaxprs: loops, choices, solves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fuzzing.widening import wide_type

Run = Callable[[object, Sequence[np.ndarray]], list[np.ndarray]]
"""`run(jaxpr, operands)`"""


def _while(run: Run, params: Mapping, operands: list[np.ndarray]) -> list[np.ndarray]:
    split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_cond, of_body, carried = (
        operands[: split[0]],
        operands[split[0] : split[1]],
        operands[split[1] :],
    )
    while np.any(goes_on := run(params["cond_jaxpr"], [*of_cond, *carried])[0]):
        after = run(params["body_jaxpr"], [*of_body, *carried])
        # Under vmap each has an end of its own.
        carried = [
            np.where(goes_on.reshape(goes_on.shape + (1,) * (a.ndim - goes_on.ndim)), a, c)
            for a, c in zip(after, carried, strict=True)
        ]
    return carried


def _scan(run: Run, params: Mapping, operands: list[np.ndarray]) -> list[np.ndarray]:
    if "ft_in" in params:  # since JAX 0.12
        consts, carries, _ = (len(part.vals) for part in params["ft_in"].unpack())
    else:
        consts, carries = params["num_consts"], params["num_carry"]
    fixed, carried, rows = (
        operands[:consts],
        operands[consts : consts + carries],
        operands[consts + carries :],
    )
    made: list[list[np.ndarray]] = []
    order = range(params["length"])
    for trip in reversed(order) if params["reverse"] else order:
        results = run(params["jaxpr"], [*fixed, *carried, *(r[trip] for r in rows)])
        carried = results[:carries]
        made.append(results[carries:])
    if params["reverse"]:
        made.reverse()
    body = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
    types = [v.aval for v in body.outvars[carries:]]
    return [
        *carried,
        *(
            np.stack([m[k] for m in made]) if made else np.zeros((0, *t.shape), wide_type(t.dtype))
            for k, t in enumerate(types)
        ),
    ]


def _cond(run: Run, params: Mapping, operands: list[np.ndarray]) -> list[np.ndarray]:
    branches = params["branches"]
    return run(branches[min(max(int(operands[0]), 0), len(branches) - 1)], operands[1:])


def _linear_solve(run: Run, params: Mapping, operands: list[np.ndarray]) -> list[np.ndarray]:
    counts = params["const_lengths"]
    before = counts.matvec + counts.vecmat
    constants = operands[before : before + counts.solve]
    right = operands[before + counts.solve + counts.transpose_solve :]
    return run(params["jaxprs"].solve, [*constants, *right])


FLOW: Mapping[str, Callable[[Run, Mapping, list[np.ndarray]], list[np.ndarray]]] = {
    "while": _while,
    "scan": _scan,
    "cond": _cond,
    "custom_linear_solve": _linear_solve,
}
