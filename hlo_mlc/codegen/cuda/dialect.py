"""CUDA C++ as one of the languages like C."""

from __future__ import annotations

from hlo_mlc.codegen.clike.dialect import Dialect
from hlo_mlc.codegen.cuda import scalar, types
from hlo_mlc.expr.dtypes import F32, F64

CUDA = Dialect(types.element_type, types.literal, scalar.spell,
               fused={F32: "__fmaf_rn", F64: "fma"}, has_fma=True)
