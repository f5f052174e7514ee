"""Runs ONNX's own test cases through `from_onnx`, and counts which give what ONNX says.

Usage: python scripts/onnx_conformance.py [PATTERN] [--kind node|simple|…|light] [--jobs 2]

What an importer has to know when it imports (a shape, axes, a number of results) is an input of
many cases: where it is refused, it is tried once more with all inputs but the first as weights, and
then with all of them.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import fnmatch
import multiprocessing
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
from onnx.backend.test.loader import DATA_DIR, load_model_tests

import hlo_mlc
from hlo_mlc.support.errors import UnsupportedOpError

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "light")
HOW = ("all inputs are arguments", "all but the first are weights", "all are weights")


def cases(kind: str) -> Iterator[tuple[str, Any]]:
    """Names of cases, with what `sets` takes."""
    if kind == "light":
        yield from ((path.stem, path) for path in sorted(Path(DATA_DIR, kind).glob("*.onnx")))
    else:
        yield from ((case.name, case) for case in load_model_tests(kind=kind))


def array(value: Any) -> Any:
    """A value of the cases as NumPy has it."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def read(path: Path, described: Any = None) -> Any:
    """What a file of test data holds."""
    data = path.read_bytes()
    if described is not None and described.type.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    return array(onnx.TensorProto.FromString(data))


def sets(case: Any) -> tuple[Any, list[tuple[Sequence[Any], Sequence[Any]]], float, float]:
    """The model of a case, its inputs and outputs, and how near ours have to be."""
    if isinstance(case, Path):  # weights by ConstantOfShape, the input is what ONNX's runner takes
        model = onnx.load(case)
        weights = {tensor.name for tensor in model.graph.initializer}
        (given,) = (given for given in model.graph.input if given.name not in weights)
        shape = [d.dim_value or 1 for d in given.type.tensor_type.shape.dim]
        x = (np.arange(np.prod(shape)) / np.float32(np.prod(shape))).astype(np.float32)
        out = read(case.with_name(f"{case.stem}_output_0.pb"))
        return model, [([x.reshape(shape)], [out])], 1e-3, 1e-5
    if case.model is not None:
        data = [tuple([array(value) for value in side] for side in each) for each in case.data_sets]
        return case.model, data, case.rtol, case.atol
    model = onnx.load(Path(case.model_dir, "model.onnx"))
    data = [
        tuple(
            [
                read(path, described)
                for n, described in enumerate(values)
                if (path := folder / f"{side}_{n}.pb").exists()
            ]
            for side, values in (("input", model.graph.input), ("output", model.graph.output))
        )
        for folder in sorted(Path(case.model_dir).glob("test_data_set_*"))
    ]
    return model, data, case.rtol, case.atol


def with_weights(model: Any, inputs: Sequence[Any], first: int) -> Any:
    """The model with the inputs from `first` on as weights."""
    if first == len(inputs):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for described, value in zip(model.graph.input[first:], inputs[first:], strict=True):
        made.graph.initializer.append(onnx.numpy_helper.from_array(value, described.name))
    del made.graph.input[first:]
    return made


def differs(found: Any, expected: Any, rtol: float, atol: float) -> str | None:
    if isinstance(expected, list | tuple):
        if len(found) != len(expected):
            return f"{len(found)} for {len(expected)} values"
        pairs = zip(found, expected, strict=True)
        return next(filter(None, (differs(a, b, rtol, atol) for a, b in pairs)), None)
    found, expected = np.asarray(found), np.asarray(expected)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype}{found.shape} for {expected.dtype}{expected.shape}"
    if jax.numpy.issubdtype(found.dtype, np.inexact):
        least = 1e-4 if found.itemsize > 2 else 2 * float(jax.numpy.finfo(found.dtype).eps)
        found, expected = (a.astype(np.complex128) for a in (found, expected))
        rtol, atol = max(rtol, least), max(atol, 1e-5)
    if not np.allclose(found, expected, rtol=rtol, atol=atol, equal_nan=True):
        return f"{found.ravel()[:6]} for {expected.ravel()[:6]}"
    return None


@jax.enable_x64(True)  # so that types are those of ONNX
def judged(case: Any) -> tuple[str, str]:
    """What becomes of a case, and why."""
    warnings.simplefilter("ignore")
    model, data, rtol, atol = sets(case)
    if not data:
        return "failed", "it has no data"
    why = ""
    for how in range(3):
        try:
            for inputs, outputs in data:
                first = (len(inputs), 1, 0)[how]
                made = hlo_mlc.from_onnx(with_weights(model, inputs, first), choose="ours")
                why = differs(made(*inputs[:first]), outputs, rtol, atol) or ""
                if why:
                    return "failed", why
            return f"passed, {HOW[how]}", ""
        except UnsupportedOpError as error:
            if how == 0:
                why = str(error).splitlines()[0]
        except Exception as error:
            if how == 0:
                return "failed", f"{type(error).__name__}: {str(error)[:200]}"
    return "refused", why


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [
        (f"{kind} {name}", case)
        for kind in options.kind or KINDS
        for name, case in cases(kind)
        if fnmatch.fnmatch(name, options.pattern)
    ]
    counts: collections.Counter[str] = collections.Counter()
    with concurrent.futures.ProcessPoolExecutor(
        options.jobs, multiprocessing.get_context("spawn")
    ) as pool:
        verdicts = pool.map(judged, [case for _, case in chosen], chunksize=8)
        for (name, _), (verdict, why) in zip(chosen, verdicts, strict=True):
            counts[verdict] += 1
            if why:
                print(f"{verdict} {name}: {why}", flush=True)
    for verdict, count in sorted(counts.items()):
        print(f"{count:5} {verdict}")


if __name__ == "__main__":
    main()
