"""Other ways to do the same work on a CPU, timed in turns with ours: `hlo-mlc bench --peers`.

Each runs as its users run it, with its own threads and its own data. IREE compiles the very program
that we do; NumPy and PyTorch have programs of their own (peer_programs.py), and ONNX Runtime runs
what PyTorch exports.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import io
import logging
import signal
import statistics
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from hlo_mlc_bench import check, timing
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.cases import CASES
from hlo_mlc_bench.peer_programs import Program, programs

Run = Callable[[], Any]
"""Does the work once, to the end; gives the results."""

OURS, JAX = "hlo_mlc", "jax.jit"
_ALLOWED = 4.0
"""Times the error that the case allows: others round differently, and are not what is tested."""

TIED = 0.97
"""From which ratio on we count as no slower."""

PATIENCE_S = 60.0
"""For a peer to compile a case: PyTorch's compilers write out every step of a loop of Python's."""


class Unfit(Exception):
    """Why a peer does not do the work of a case."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A way to do the work: its packages, and what prepares it for a case.

    `prepare(case, function, arguments)` raises `Unfit`, or whatever the packages raise.
    """

    name: str
    packages: tuple[str, ...]
    prepare: Callable[[Case, Callable[..., Any], Sequence[Any]], Run]

    def version(self) -> str | None:
        """That of its first package; None where one is not installed."""
        try:
            version, *_ = map(importlib.metadata.version, self.packages)
        except importlib.metadata.PackageNotFoundError:
            return None
        return version


@dataclass(frozen=True, slots=True)
class PeerRow:
    """Milliseconds of a call by name of the peer, of one among many in a row (`ms`) and of the
    first after a pause; why others are not among them."""

    name: str
    ms: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    after_pause_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def best(self) -> str | None:
        """The fastest but us, in a row; None where there is no other than jax.jit."""
        return _fastest(self.ms)

    @property
    def ratio(self) -> float | None:
        """The time of the fastest peer / ours, in a row."""
        return _ratio(self.ms)

    @property
    def ratio_after_pause(self) -> float | None:
        """The time of the fastest peer / ours, after a pause: that may be another peer."""
        return _ratio(self.after_pause_ms)


def _fastest(ms: Mapping[str, float]) -> str | None:
    others = {name: taken for name, taken in ms.items() if name not in (OURS, JAX)}
    return min(others, key=others.__getitem__, default=None)


def _ratio(ms: Mapping[str, float]) -> float | None:
    best = _fastest(ms)
    return None if best is None or OURS not in ms else ms[best] / ms[OURS]


def compared() -> tuple[Case, ...]:
    """The cases that peers have programs for."""
    return tuple(case for case in CASES if case.name in programs(dict(case.sizes)))


def installed() -> dict[Peer, str]:
    """The peers that are there, with their versions."""
    return {peer: version for peer in PEERS if (version := peer.version()) is not None}


def run_case(case: Case, compile_ours: Callable, peers: Sequence[Peer], rounds: int) -> PeerRow:
    """Times all that do the work of a case right; what fails in one of them is in the row."""
    with case.in_its_mode():
        function, args = case.make()
        expected = check.reference(function, args)
        by_jax = jax.jit(case.make()[0])
        allowed = _ALLOWED * check.bound(case, check.error(by_jax(*args), expected))
        runs: dict[str, Run] = {}
        failed: dict[str, str] = {}
        ways: dict[str, Callable[[], Run]] = {
            OURS: lambda: _waiting(compile_ours(case.make()[0]), args),
            JAX: lambda: _waiting(by_jax, args),
        }
        for peer in peers:
            ways[peer.name] = functools.partial(peer.prepare, case, function, args)
        for name, prepare in ways.items():
            try:
                with _at_most(PATIENCE_S):
                    run = prepare()
                    results = _as_arrays(run())
                error = check.error(results, expected)
            except Exception as reason:  # whatever a peer may raise: the others still run
                lines = str(reason).splitlines() or [""]
                failed[name] = (
                    lines[0]
                    if isinstance(reason, Unfit)
                    else f"{type(reason).__name__}: {lines[0]}"
                )
                continue
            if error <= allowed:
                runs[name] = run
            else:
                failed[name] = f"its error is {error:.2g}, {allowed:.2g} is allowed"
        paces = timing.in_turns(runs, rounds)
    return PeerRow(
        case.name,
        {name: statistics.median(taken.in_a_row) * 1e3 for name, taken in paces.items()},
        failed,
        {name: statistics.median(taken.after_pause) * 1e3 for name, taken in paces.items()},
    )


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises Unfit in here when so much time has passed, and every second from then on: what is
    raised in a callback of the garbage collector is lost.  Only the main thread can be told to."""

    def give_up(*_: Any) -> None:
        raise Unfit(f"not compiled after {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


def _waiting(compiled: Callable[..., Any], args: Sequence[Any]) -> Run:
    return lambda: jax.block_until_ready(compiled(*args))


def _as_arrays(results: Any) -> list[np.ndarray]:
    """In the order of the results of the JAX function, integers as that has them."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


def _program(case: Case) -> Program:
    return programs(dict(case.sizes)).get(case.name, Program())


def _numpy(case: Case, function: Callable[..., Any], args: Sequence[Any]) -> Run:
    program = _program(case).numpy
    if program is None:
        raise Unfit("no program for it")
    arrays = jax.tree.map(np.asarray, tuple(args))
    return lambda: program(*arrays)


def _tensors(torch: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    return jax.tree.map(lambda x: torch.from_numpy(np.array(x)), tuple(args))


def _torch_function(case: Case, torch: Any, tensors: Sequence[Any]) -> Callable[..., Any]:
    made = _program(case).torch
    if made is None:
        raise Unfit("no program for it")
    return made(torch, *tensors)


def _torch(
    case: Case, function: Callable[..., Any], args: Sequence[Any], compiles: bool = False
) -> Run:
    torch = importlib.import_module("torch")
    tensors = _tensors(torch, args)
    program = _torch_function(case, torch, tensors)
    if compiles:
        torch.compiler.reset()  # which takes each case for another call of one function otherwise
        program = torch.compile(program)

    mode = contextlib.nullcontext if _program(case).trains else torch.inference_mode

    def run() -> Any:
        with mode():
            return program(*tensors)

    return run


def _onnx_runtime(case: Case, function: Callable[..., Any], args: Sequence[Any]) -> Run:
    if _program(case).trains:
        raise Unfit("it takes gradients")
    torch, runtime = map(importlib.import_module, ("torch", "onnxruntime"))
    tensors = _tensors(torch, args)
    program = _torch_function(case, torch, tensors)
    leaves, structure = jax.tree.flatten(tensors)

    class Module(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return program(*jax.tree.unflatten(structure, given))

    file = io.BytesIO()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(Module(), tuple(leaves), dynamo=True, verbose=False).save(file)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    if len(names) != len(leaves):
        raise Unfit("some arguments are constants in the exported model")
    feeds = dict(zip(names, (leaf.numpy() for leaf in leaves), strict=True))
    return lambda: session.run(None, feeds)


def _iree(case: Case, function: Callable[..., Any], args: Sequence[Any]) -> Run:
    compiler, runtime = map(importlib.import_module, ("iree.compiler", "iree.runtime"))
    text = jax.jit(function).lower(*args).as_text()
    binary = compiler.compile_str(
        text,
        target_backends=["llvm-cpu"],
        input_type="stablehlo",
        extra_args=[
            "--iree-llvmcpu-target-cpu=host",
            "--iree-opt-level=O3",
            "--iree-llvmcpu-stack-allocation-limit=262144",
        ],
    )
    config = runtime.Config("local-task")
    module = runtime.load_vm_modules(
        runtime.VmModule.copy_buffer(config.vm_instance, binary), config=config
    )[0]
    arrays = [
        runtime.asdevicearray(config.device, np.asarray(leaf))
        for leaf in jax.tree.leaves(tuple(args))
    ]

    def run() -> list[np.ndarray]:
        results = module.main(*arrays)
        results = results if isinstance(results, (tuple, list)) else [results]
        return [result.to_host() for result in results]

    return run


PEERS = (
    Peer("NumPy", ("numpy",), _numpy),
    Peer("PyTorch", ("torch",), _torch),
    Peer("torch.compile", ("torch",), functools.partial(_torch, compiles=True)),
    Peer("ONNX Runtime", ("onnxruntime", "onnxscript", "torch"), _onnx_runtime),
    Peer("IREE", ("iree-base-compiler", "iree-base-runtime"), _iree),
)
"""All that we know how to run, in the order of the table."""
