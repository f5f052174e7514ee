"""Legalised f32 functions against f64 references: errors in units in the last place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from hlo_mlc.codegen.legalize import legalize
from hlo_mlc.expr.build import apply
from hlo_mlc.expr.core import Var
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.expr.evaluate import evaluate
