"""Kernels of every class on the emulator under AddressSanitizer: no access outside of an array, in
shared memory and in registers either."""

from __future__ import annotations

import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from emulation.emulator import FLAGS, HEADER, namespace_of, translation_unit
from hlo_mlc.codegen.cuda.plan import CudaSource, Launch
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.tensor.core import TensorProgram

SANITIZER = ("-O1", "-fsanitize=address", "-fsanitize-sections=mlc_shared")
X = np.ones((37, 45), np.float32)
FUNCTIONS = {
    "map": lambda x: x * 2 + 1,
    "softmax": jax.nn.softmax,
    "sum of all": lambda x: x.sum(),
    "cumulative sums": lambda x: jnp.cumsum(x, 0),
    "columns": lambda x: x.sum(0),
    "transpose": lambda x: x.T + 1,
    "product": lambda x: jnp.tanh(x @ x.T),
    "product of narrow floats": lambda x: x.astype(jnp.bfloat16).T @ x.astype(jnp.bfloat16),
    "pool": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3, 3), (2, 2), "SAME"),
    "sums by places": lambda x: x.at[jnp.arange(37) % 5].add(x),
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + jnp.roll(c, 1) + i, x),
}


def _main(kernels: list[tuple[CudaSource, TensorProgram]]) -> str:
    """A program that runs all launches, each buffer being a block of the heap."""
    lines = [
        translation_unit([source for source, _ in kernels]),
        "#include <cstdlib>",
        "int main() {",
    ]
    for number, (source, program) in enumerate(kernels):
        sizes = [b.bytes for b in (*program.operands, *program.results)]
        blocks = ", ".join(f"calloc({size}, 1)" for size in sizes)
        lines += [
            "  {",
            f"    void* memory[] = {{{blocks}}};",
            f"    void* scratch = malloc({max(1, source.scratch_bytes)});",
        ]
        for launch in source.launches:
            arguments = [f"&memory[{n}]" for n in launch.buffers]
            arguments += ["&scratch"] * launch.takes_scratch
            arguments += [f"new int({n})" for n in launch.counters]
            n = len(lines)
            lines += [
                f"    void* of_{n}[] = {{{', '.join(arguments)}}};",
                f"    const char* error_{n} = {namespace_of(source)}_{launch.function}("
                f"{launch.blocks}, {launch.threads}, {launch.shared_bytes}, of_{n}, "
                f"{number % 9});",
                f"    if (error_{n}) return puts(error_{n}), 1;",
            ]
        lines.append("  }")
    return "\n".join([*lines, "}"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Compiles and runs such a program; skips where there is no sanitizer."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    folder = tmp_path_factory.mktemp("sanitizer")
    flags = [flag for flag in FLAGS if flag not in ("-fPIC", "-shared")]

    def compile_and_run(text: str) -> subprocess.CompletedProcess:
        program = folder / "program"
        compiled = subprocess.run(
            [
                "g++",
                *SANITIZER,
                *flags,
                "-x",
                "c++",
                "-I",
                str(HEADER.parent),
                "-",
                "-o",
                str(program),
            ],
            input=text,
            text=True,
            capture_output=True,
        )
        if "asan" in compiled.stderr:
            pytest.skip("g++ has no AddressSanitizer here")
        assert compiled.returncode == 0, compiled.stderr
        return subprocess.run(
            [str(program)], text=True, capture_output=True, env={"ASAN_OPTIONS": "detect_leaks=0"}
        )

    return compile_and_run


def test_nothing_is_touched_outside_of_arrays(run, take_apart, cuda_source) -> None:
    kernels = [
        (cuda_source(program), program)
        for function in FUNCTIONS.values()
        for program in take_apart(function, X).programs
    ]
    result = run(_main(kernels))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("s[threadIdx.x + 1] = 0;", "global-buffer-overflow"),
        ("own[threadIdx.x + 3] = 0; y[0] = own[threadIdx.x];", "stack-buffer-overflow"),
        ("y[threadIdx.x + 1] = 0;", "heap-buffer-overflow"),
    ],
)
def test_it_would_be_noticed(run, written: str, place: str) -> None:
    text = (
        'extern "C" __global__ void k(float* y) {\n'
        f"__shared__ float s[32], next[32]; volatile float own[34];\n{written}\n"
        "next[0] = s[0]; }\n"
    )
    y = Buffer("y", F32, (32,), "result")
    source = CudaSource(text, (Launch("k", 1, 32, (0,), False),), 0)
    result = run(_main([(source, TensorProgram("k", (), (y,), (), ()))]))
    assert place in result.stderr, result.stderr
