"""All operators that are imported, those that the specification gives by others aside.

Source: onnx/docs/Operators.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.interop.onnx.contractions import CONTRACTIONS
from hlo_mlc.interop.onnx.control import CONTROL
from hlo_mlc.interop.onnx.elementwise import ELEMENTWISE
from hlo_mlc.interop.onnx.node import Operator
from hlo_mlc.interop.onnx.quantized import QUANTIZED
from hlo_mlc.interop.onnx.recurrent import RECURRENT
from hlo_mlc.interop.onnx.sampling import SAMPLING
from hlo_mlc.interop.onnx.shapes import SHAPES
from hlo_mlc.interop.onnx.signals import SIGNALS
from hlo_mlc.interop.onnx.windows import WINDOWS

OPERATORS: Mapping[str, Operator] = {
    **ELEMENTWISE,
    **SHAPES,
    **CONTRACTIONS,
    **WINDOWS,
    **SAMPLING,
    **SIGNALS,
    **RECURRENT,
    **QUANTIZED,
    **CONTROL,
}

NEWEST = 28
"""The set of operators up to which their meanings are known."""

_RANDOM, _TEXT = "it draws random numbers", "JAX has no strings"
REFUSED: Mapping[str, str] = {
    "Bernoulli": _RANDOM,
    "ImageDecoder": "it decodes files",
    "Multinomial": _RANDOM,
    "NonMaxSuppression": "the number of its results depends on the model's inputs, and programs of "
    "JAX have only sizes that are known",
    "RandomNormal": _RANDOM,
    "RandomNormalLike": _RANDOM,
    "RandomUniform": _RANDOM,
    "RandomUniformLike": _RANDOM,
    "RegexFullMatch": _TEXT,
    "StringConcat": _TEXT,
    "StringNormalizer": _TEXT,
    "StringSplit": _TEXT,
}
"""Why some are not."""
