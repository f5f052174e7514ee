"""How numbers are spelled in languages like C."""

from __future__ import annotations

import numpy as np

from hlo_mlc.expr.dtypes import I32, I64, INDEX, U32, U64, DType

INT_LIMIT = 1 << 31


def decimal(value: np.floating) -> str:
    """The shortest decimal number that reads back as the same float."""
    text = (
        np.format_float_scientific(value, trim="-")
        if value != 0 and not 1e-4 <= abs(value) < 1e7
        else np.format_float_positional(value, trim="-")
    )
    return text if "." in text or "e" in text else f"{text}.0"


def integer(value: int, dtype: DType, kind: str) -> str:
    """An integer of a type, which the language calls `kind`."""
    if dtype is INDEX:
        return str(value) if -INT_LIMIT < value < INT_LIMIT else f"{value}ll"
    if dtype is I64:
        return f"{value}ll" if value > -(1 << 63) else f"(-{(1 << 63) - 1}ll - 1)"
    if dtype is U64:
        return f"{value}ull"
    if dtype is U32:
        return f"{value}u"
    if dtype is I32:
        return str(value) if value > -INT_LIMIT else f"(-{INT_LIMIT - 1} - 1)"
    return f"({kind}){value}"
