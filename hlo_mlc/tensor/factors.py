"""Factors of matrix products, computed and laid out before these."""

from __future__ import annotations

from dataclasses import replace

from hlo_mlc.expr.build import load
from hlo_mlc.expr.core import Buffer
from hlo_mlc.tensor.classify import contraction
from hlo_mlc.tensor.core import Assign, Stage


def with_factor_turned(stage: Stage) -> tuple[Stage, Stage, Buffer]:
    """The left factor of a product in an array of its own, in which the depth comes last; and the
    product that reads it there.

        y[i, j] = sum over k of a[k, i] * b[k, j]   ->   t[i, k] = a[k, i];
                                                         y[i, j] = sum over k of t[i, k] * b[k, j]
    """
    roles = contraction(stage)
    axes = (*roles.batch, *roles.rows, *roles.summed)
    factor = Buffer(f"{stage.name}_turned", roles.lhs.dtype, tuple(v.extent for v in axes))
    turned = Stage(f"{stage.name}_turn", axes, (Assign(factor, axes, roles.lhs),))
    term = load(factor, axes) * roles.rhs
    return turned, replace(stage, terms=(term,)), factor
