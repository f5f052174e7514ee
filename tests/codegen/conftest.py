"""Running generated kernels in this process, on arrays that end where readable memory ends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.expr.ops import OPS
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store
from hlo_mlc.runtime.measure import bind_kernel
from hlo_mlc.runtime.variants import KernelCode, load_object
from hlo_mlc.support.errors import KernelFaultError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import CpuTarget, host, named
from hlo_mlc.target.levels import THIS_MACHINE, runnable
from making.code import generate
from making.machine import Fenced

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_PARALLEL_FOR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
)
_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)


class _Context(ctypes.Structure):
    _fields_ = (("parallel_for", ctypes.c_void_p), ("thread_count", ctypes.c_int64))


def _run_tasks(context: int, body: int, closure: int, count: int) -> None:
    task = _TASK(body)
    for number in reversed(range(count)):  # an order that no kernel may rely on
        task(closure, number)


_run_tasks_pointer = _PARALLEL_FOR(_run_tasks)


_FENCES = Fenced()


class Machine:
    """Compiles and runs kernels for the host or a level below it."""

    def __init__(self, checked: bool) -> None:
        """`checked`: kernels check their accesses, unless they begin with given results."""
        self._checked = checked
        self._last: tuple[tuple, KernelCode] | None = None

    def _code(self, program: LoopProgram, target: CpuTarget, checked: bool) -> KernelCode:
        """The code of a program, which is compiled once where it is run again and again."""
        asked = (program, target, checked)
        if self._last is None or self._last[0] != asked:
            generated = generate(program, target, checked)
            self._last = (
                asked,
                load_object(generated.object_code, generated.symbol, program.scratch_bytes),
            )
        return self._last[1]

    def run(
        self,
        program: LoopProgram,
        operands: Sequence[np.ndarray],
        *,
        results: Sequence[np.ndarray] | None = None,
        target: CpuTarget | None = None,
        at_end: bool = True,
    ) -> list[np.ndarray]:
        """The results of a kernel; results start as zeros unless given, an aliased result in the
        memory of its operand."""
        if results is None and self._checked:
            checked = self._run_checked(program, operands, target or host())
            if checked is not None:
                return checked
        code = self._code(program, target or host(), False)
        inputs = {
            b.name: _FENCES.copy(np.asarray(a, b.dtype.numpy), at_end)
            for b, a in zip(program.operands, operands, strict=True)
        }
        aliases = {result.name: operand.name for result, operand in program.aliases}
        outputs = []
        for number, buffer in enumerate(program.results):
            if buffer.name in aliases:
                outputs.append(inputs[aliases[buffer.name]])
            else:
                outputs.append(
                    _FENCES.empty(buffer.shape, buffer.dtype.numpy, at_end)
                    if results is None
                    else _FENCES.copy(results[number], at_end)
                )
        scratch = _FENCES.empty((max(program.scratch_bytes, 64),), np.uint8, at_end)
        fenced = [*inputs.values(), *outputs]
        buffers = (ctypes.c_void_p * len(fenced))(*(f.ctypes.data for f in fenced))
        pointer = ctypes.cast(_run_tasks_pointer, ctypes.c_void_p)
        context = _Context(pointer, 1)
        entry = _ENTRY(code.entry)
        entry(ctypes.addressof(context), ctypes.addressof(buffers), scratch.ctypes.data)
        return [f.copy() for f in outputs]

    def _run_checked(
        self, program: LoopProgram, operands: Sequence[np.ndarray], target: CpuTarget
    ) -> list[np.ndarray] | None:
        """The results of a kernel with checks, by the runtime; None if all that they find is that
        it leaves elements as they were, as kernels that are written by hand may."""
        code = self._code(program, target, True)
        inputs = {
            b: np.array(a, b.dtype.numpy) for b, a in zip(program.operands, operands, strict=True)
        }
        aliases = dict(program.aliases)
        outputs = [
            inputs[aliases[b]] if b in aliases else np.zeros(b.shape, b.dtype.numpy)
            for b in program.results
        ]
        try:
            bind_kernel(code, list(inputs.values()), outputs)()
        except KernelFaultError as fault:
            if "nothing is written" not in str(fault):
                raise
            return None
        return outputs


@pytest.fixture(scope="session")
def machine() -> Machine:
    return Machine(Options.from_environment().check)


@pytest.fixture(scope="session")
def unflushed_machine() -> Machine:
    """One that takes subnormals for numbers; the runtime, which kernels with checks need, flushes
    them to zero."""
    return Machine(checked=False)


@pytest.fixture(scope="session")
def flushed() -> Callable[..., list[np.ndarray]]:
    """`flushed(program, operands, target)`: the results of a kernel as the runtime calls it, where
    subnormal numbers are zero."""

    def run(
        program: LoopProgram, operands: Sequence[np.ndarray], target: CpuTarget
    ) -> list[np.ndarray]:
        generated = generate(program, target)
        code = load_object(generated.object_code, generated.symbol, program.scratch_bytes)
        outputs = [np.zeros(b.shape, b.dtype.numpy) for b in program.results]
        bind_kernel(code, operands, outputs)()
        return outputs

    return run


@pytest.fixture(scope="session")
def elementwise() -> Callable[..., LoopProgram]:
    """`elementwise(op, dtype, count, lanes)`: a function of all elements, in vectors of `lanes`."""

    def build(op: str, dtype: DType, count: int, lanes: int) -> LoopProgram:
        buffers = tuple(Buffer(f"in{i}", dtype, (count,), "operand") for i in range(OPS[op].arity))
        result = Buffer("out", dtype, (count,), "result")
        outer, lane = variable("outer", count // lanes), variable("lane", lanes)
        where = index.add(index.multiply(outer, index.constant(lanes)), lane)
        value = apply(op, *(load(b, (where,)) for b in buffers))
        return LoopProgram(
            "function",
            buffers,
            (result,),
            (
                For(
                    outer,
                    index.constant(count // lanes),
                    LoopKind.SERIAL,
                    (
                        For(
                            lane,
                            index.constant(lanes),
                            LoopKind.VECTORIZE,
                            (Store(result, (where,), value),),
                        ),
                    ),
                ),
            ),
        )

    return build


@pytest.fixture(params=["host", *(level for level in runnable() if level != THIS_MACHINE)])
def target(request: pytest.FixtureRequest) -> CpuTarget:
    """Each target that this machine can run."""
    return named(request.param)


@pytest.fixture
def samples() -> Callable[[DType, int, int], np.ndarray]:
    """`samples(dtype, count, seed)`: special values first, then random bit patterns and numbers."""

    def make(dtype: DType, count: int, seed: int) -> np.ndarray:
        random = np.random.default_rng(seed)
        if dtype.numpy == np.bool_:
            return random.integers(0, 2, count).astype(np.bool_)
        if dtype.is_integer:
            low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
            special = [0, 1, 2, 3, high, high - 1, low, low + 1, dtype.bits - 1, dtype.bits]
            if dtype.is_signed:
                special += [-1, -2, -3]
            picks = [
                random.integers(low, high, count, dtype.numpy, endpoint=True),
                random.integers(0, 9, count).astype(dtype.numpy),
                random.choice(np.array(special, dtype.numpy), count),
            ]
        else:
            special = [
                0.0,
                -0.0,
                1.0,
                -1.0,
                0.5,
                -0.5,
                1.5,
                2.5,
                np.inf,
                -np.inf,
                np.nan,
                3e38,
                -3e38,
                1e-40,
                65504.0,
                65520.0,
                2.0**31,
                -(2.0**31),
                2.0**63,
                255.0,
                256.0,
            ]
            with np.errstate(all="ignore"):
                picks = [
                    random.standard_normal(count).astype(dtype.numpy),
                    (random.standard_normal(count) * 1e5).astype(dtype.numpy),
                    random.integers(0, 256, (count, dtype.bytes), np.uint8)
                    .view(dtype.numpy)
                    .reshape(count),
                    random.choice(np.array(special).astype(dtype.numpy), count),
                ]
        return np.choose(random.integers(0, len(picks), count), picks)

    return make
