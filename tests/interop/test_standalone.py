"""C libraries of functions: compiled into a C program, they compute what JAX does."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax import lax

from hlo_mlc import UnsupportedOpError, export_c, mlc_jit
from hlo_mlc.cli import main
from hlo_mlc.interop.c_names import why_no_name
from hlo_mlc.runtime.measure import aligned_empty
from hlo_mlc.support.errors import UsageError
from hlo_mlc.target import cpu
from hlo_mlc.target.levels import present_features, required_features, runnable

FEATURES_OF_V3 = required_features(cpu.named("x86-64-v3"))
PROGRAM = Path(__file__).parent / "standalone.c"
CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler")

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def mlp(parameters: list, x: jax.Array) -> jax.Array:
    for weight, bias in parameters:
        x = jax.nn.gelu(x @ weight + bias)
    return x


def attention(x: jax.Array, qkv: jax.Array, out: jax.Array) -> jax.Array:
    q, k, v = jnp.split((x @ qkv).reshape(*x.shape[:-1], 3, 4, 16), 3, axis=-3)
    scores = jnp.einsum("bqihd,bkihd->bhqk", q, k) / 4.0
    mixed = jnp.einsum("bhqk,bkihd->bqhd", jax.nn.softmax(scores), v)
    return x + mixed.reshape(x.shape) @ out


def network(image: jax.Array, first: jax.Array, second: jax.Array, dense: jax.Array) -> dict:
    x = image
    for kernel in (first, second):
        x = jax.nn.relu(
            lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        )
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    scores = x.reshape(x.shape[0], -1) @ dense
    return {"scores": scores, "best": jnp.argmax(scores, -1)}


CASES: dict[str, tuple[Callable, Sequence]] = {
    "mlp": (
        mlp,
        (
            [
                (normal(48, 160), normal(160)),
                (normal(160, 300), normal(300)),
                (normal(300, 17), normal(17)),
            ],
            normal(32, 48),
        ),
    ),
    "attention": (attention, (normal(2, 40, 64), normal(64, 192), normal(64, 64))),
    "network": (
        network,
        (normal(2, 16, 12, 3), normal(3, 3, 3, 8), normal(3, 3, 8, 16), normal(192, 10)),
    ),
    "phases": (
        lambda z: (jnp.exp(z) @ jnp.conj(z.T), jnp.abs(z)),
        (lax.complex(normal(9, 5), normal(9, 5)),),
    ),
}


def run(
    folder: Path,
    name: str,
    operands: Sequence,
    results: Sequence,
    compiler: Sequence[str],
    start: Sequence[str] = (),
    library: str = "",
) -> list[np.ndarray]:
    """The results of a library, by a C program that is compiled with it."""
    operands = [np.asarray(a) for a in operands]
    header = (folder / f"{name}.h").read_text()
    workspace = re.search(r"_WORKSPACE_BYTES (\d+)", header)[1]
    offsets = [0, *np.cumsum([a.nbytes for a in operands])]
    targets = [0, *np.cumsum([r.nbytes for r in results])]
    pointers = [f"(void*)(in+{n})" for n in offsets[:-1]]
    pointers += [f"(void*)(out+{n})" for n in targets[:-1]]
    subprocess.run(
        [
            *compiler,
            "-std=c11",
            "-O1",
            "-Wall",
            "-Werror",
            f"-I{folder}",
            f'-DHEADER="{name}.h"',
            f"-DWORKSPACE_BYTES={workspace}",
            f"-DRESULT_BYTES={targets[-1]}",
            f"-DCALL={name}({','.join(pointers)},workspace)",
            str(PROGRAM),
            str(folder / (library or f"{name}.a")),
            f"-Wl,-rpath,{folder}",
            "-o",
            str(folder / name),
            "-lm",
        ],
        check=True,
    )
    (folder / "in").write_bytes(b"".join(a.tobytes() for a in operands))
    subprocess.run(
        [*start, str(folder / name), str(folder / "in"), str(folder / "out")], check=True
    )
    out = (folder / "out").read_bytes()
    return [
        np.frombuffer(out[begin:end], r.dtype).reshape(r.shape)
        for r, begin, end in zip(results, targets, targets[1:], strict=False)
    ]


def check(
    folder: Path,
    name: str,
    function: Callable,
    args: Sequence,
    given: Sequence,
    compiler: Sequence[str] = (str(CC),),
    start: Sequence[str] = (),
    library: str = "",
) -> None:
    expected = [np.asarray(r) for r in jax.tree.leaves(jax.jit(function)(*args))]
    actual = run(folder, name, jax.tree.leaves(given), expected, compiler, start, library)
    for a, b in zip(actual, expected, strict=True):
        if b.dtype.kind in "fc":
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers_as_jax(tmp_path: Path, name: str) -> None:
    function, args = CASES[name]
    report = export_c(function, *args, path=tmp_path / name)
    assert report.kernels >= 1 and report.workspace_bytes <= report.total_bytes
    check(tmp_path, name, function, args, args)


# As a person would build it, and with everything checked that C leaves open.
BUILDS = {
    "-O2": ("-O2", "-Wextra", "-pedantic"),
    "sanitizers": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", CASES)
def test_the_source(tmp_path: Path, name: str, build: str) -> None:
    function, args = CASES[name]
    report = export_c(function, *args, path=tmp_path / f"{name}.c")
    assert report.kernels >= 1
    check(tmp_path, name, function, args, args, (str(CC), *BUILDS[build]), library=f"{name}.c")


def test_the_source_can_be_read(tmp_path: Path) -> None:
    """Kernels and buffers have the user's names and lines."""

    def layer(x: jax.Array, bias: jax.Array) -> jax.Array:
        return jax.nn.softmax(x + bias)

    report = export_c(layer, normal(6, 40), normal(40), path=tmp_path / "layer.c")
    text = report.library.read_text()
    here = f"{Path(__file__).name}:{layer.__code__.co_firstlineno + 1}"
    assert f"@{here} */" in text and f"/* f32[6, 40]: {here} */" in text
    assert "a0,  /* x: f32[6, 40] */" in text and str(tmp_path) not in text
    assert max(map(len, text.splitlines())) < 160


def test_the_source_from_the_command_line(tmp_path: Path) -> None:
    output = tmp_path / "squash"
    ran = CliRunner().invoke(
        main,
        [
            "export",
            "jax.numpy:tanh",
            "--arg",
            "f32[5,3]",
            "-o",
            str(output),
            "--format",
            "c-source",
        ],
    )
    assert ran.exit_code == 0, ran.output
    assert sorted(p.name for p in output.iterdir()) == ["squash.c", "squash.h"]
    x = normal(5, 3)
    check(output, "squash", jnp.tanh, (x,), (x,), library="squash.c")


def test_source_of_all_types(tmp_path: Path) -> None:
    """Constants go into the file; what C has no type for is its bits."""

    def function(x: jax.Array, n: jax.Array) -> list[jax.Array]:
        f8 = x.astype(jnp.float8_e4m3fn)
        return [
            x.astype(jnp.bfloat16) * 2,
            x.astype(jnp.float16) + n.astype(jnp.float16),
            f8.astype(jnp.float32) * 3,
            (n // 3) % 5,
            n.astype(jnp.uint8) >> 1,
            x > 0,
            x * jnp.asarray([1.5, -0.0, jnp.inf, 3.0]),
            n.astype(jnp.int16) * 7,
        ]

    x = np.asarray([[1.25, -3.5, 0.0, 70000.0], [np.nan, -np.inf, 1e-8, 2.5]], np.float32)
    n = np.asarray([[7, -9, 0, 2**31 - 1], [-(2**31), 3, 100, -1]], np.int32)
    export_c(function, x, n, path=tmp_path / "all.c")
    expected = [np.asarray(r) for r in jax.tree.leaves(jax.jit(function)(x, n))]
    actual = run(
        tmp_path, "all", [x, n], expected, (str(CC), *BUILDS["sanitizers"]), library="all.c"
    )
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize("name", CASES)
def test_shared_libraries(tmp_path: Path, name: str) -> None:
    function, args = CASES[name]
    report = export_c(function, *args, path=tmp_path / f"lib{name}.so")
    assert (report.library.name, report.header.name) == (f"lib{name}.so", f"{name}.h")
    check(tmp_path, name, function, args, args, library=f"lib{name}.so")
    symbols = ctypes.CDLL(str(report.library))
    assert getattr(symbols, name)
    with pytest.raises(AttributeError):
        getattr(symbols, f"k_{only_kernel_id(report.library)}")


def only_kernel_id(library: Path) -> str:
    """Of some kernel whose code is in a library."""
    exported = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    return re.search(r" t k_(\w+)", exported)[1]


def test_no_linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"takes a linker for \w+: install .*, or export a static"):
        export_c(jnp.tanh, normal(4, 4), path=tmp_path / "f.so")
    assert list(tmp_path.iterdir()) == []


def test_weights_in_the_library(tmp_path: Path) -> None:
    function, (parameters, x) = CASES["mlp"]
    export_c(function, parameters, x, path=tmp_path / "inside", embed=0)
    check(tmp_path, "inside", function, (parameters, x), [x])


def test_memory_is_used_again(tmp_path: Path) -> None:
    weight = normal(256, 256)

    def deep(x: jax.Array) -> jax.Array:
        for _ in range(6):
            x = jax.nn.softmax(x @ weight)
        return x

    x = normal(64, 256)
    report = export_c(deep, x, path=tmp_path / "deep")
    assert report.kernels >= 2
    assert report.workspace_bytes <= 4 * x.nbytes < report.total_bytes
    check(tmp_path, "deep", deep, (x,), [x])


def test_results_that_are_no_kernels(tmp_path: Path) -> None:
    table = np.arange(12, dtype=np.int32).reshape(3, 4)

    def function(x: jax.Array, unused: jax.Array, *, scale: jax.Array) -> tuple:
        y = x * scale
        return y, x, y.reshape(-1), jnp.asarray(table), jnp.arange(5), y

    x, scale = normal(8, 8), np.float32(3)
    export_c(function, x, x, path=tmp_path / "odd", scale=scale)
    header = (tmp_path / "odd.h").read_text()
    for part in ("/* unused: f32[8, 8] */", "/* scale: f32[] */", "int32_t* r3"):
        assert part in header
    check(tmp_path, "odd", lambda x, u, s: function(x, u, scale=s), (x, x, scale), [x, x, scale])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool"])
def test_types(tmp_path: Path, dtype: str) -> None:
    x = jnp.asarray(RNG.integers(0, 2, (5, 7)), dtype)
    export_c(lambda x: jnp.where(x > 0, x, x.T.reshape(5, 7)), x, path=tmp_path / "types")
    check(tmp_path, "types", lambda x: jnp.where(x > 0, x, x.T.reshape(5, 7)), (x,), [x])


@pytest.mark.parametrize("suffix", ["a", "so"])
@pytest.mark.parametrize("name", CASES)
def test_aarch64(tmp_path: Path, name: str, suffix: str) -> None:
    compiler, emulator = map(shutil.which, ("aarch64-linux-gnu-gcc", "qemu-aarch64"))
    if compiler is None or emulator is None:
        pytest.skip(
            "there is no cross compiler for aarch64 (Debian's gcc-aarch64-linux-gnu) or no "
            "qemu-aarch64 (qemu-user) to run its code"
        )
    function, args = CASES[name]
    library = f"{name}.{suffix}"
    export_c(function, *args, path=tmp_path / library, target="aarch64")
    options = {"a": [compiler, "-static"], "so": [compiler]}[suffix]
    check(
        tmp_path,
        name,
        function,
        args,
        args,
        options,
        [emulator, "-L", "/usr/aarch64-linux-gnu"],
        library=library,
    )


@pytest.mark.parametrize("name", CASES)
def test_valgrind_finds_no_fault(tmp_path: Path, name: str) -> None:
    """No access outside of what is handed over, nothing read that was never written."""
    valgrind = shutil.which("valgrind")
    if valgrind is None or not present_features() >= FEATURES_OF_V3:
        pytest.skip("there is no valgrind, or no machine for the code that it knows (x86-64-v3)")
    function, args = CASES[name]
    export_c(function, *args, path=tmp_path / name, target="x86-64-v3")
    check(
        tmp_path,
        name,
        function,
        args,
        args,
        start=[valgrind, "-q", "--error-exitcode=9", "--leak-check=full"],
    )


def loaded(folder: Path, name: str) -> tuple[Callable[..., None], int]:
    """A case's function out of a shared library, and the bytes of its workspace."""
    function, args = CASES[name]
    report = export_c(function, *args, path=folder / f"{name}.so")
    call = getattr(ctypes.CDLL(str(report.library)), name)

    def run(
        operands: Sequence[np.ndarray], results: Sequence[np.ndarray], workspace: np.ndarray
    ) -> None:
        call(*(ctypes.c_void_p(a.ctypes.data) for a in (*operands, *results, workspace)))

    return run, report.workspace_bytes


@pytest.mark.parametrize("name", CASES)
def test_the_workspace_is_as_large_as_reported(tmp_path: Path, name: str) -> None:
    """Nothing behind it is written, and its last cache line is; no other memory is asked for."""
    run, size = loaded(tmp_path, name)
    function, args = CASES[name]
    operands = [np.ascontiguousarray(a) for a in jax.tree.leaves(args)]
    results = [np.asarray(r).copy() for r in jax.tree.leaves(jax.jit(function)(*args))]
    written = np.zeros(size + 4096, bool)
    for fill in (0x00, 0x5A):
        workspace = aligned_empty((size + 4096,), np.uint8)
        workspace[...] = fill
        run(operands, results, workspace)
        written |= workspace != fill
    assert not written[size:].any()
    assert size - 64 <= np.flatnonzero(written)[-1] < size
    undefined = subprocess.run(
        ["nm", "-u", "-D", tmp_path / f"{name}.so"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"malloc", "calloc", "realloc", "mmap", "posix_memalign"} & {
        symbol.partition("@")[0] for symbol in undefined
    }


def test_calls_at_the_same_time(tmp_path: Path) -> None:
    """Two threads, each with a workspace and operands of its own."""
    run, size = loaded(tmp_path, "attention")
    function, (x, *weights) = CASES["attention"]
    barrier = threading.Barrier(2)

    def many(scale: float) -> list[np.ndarray]:
        given = x * np.float32(scale)
        workspace = aligned_empty((size,), np.uint8)
        found = []
        barrier.wait()
        for _ in range(200):
            result = np.zeros_like(x)
            run([given, *weights], [result], workspace)
            found.append(result)
        return found

    with ThreadPoolExecutor(2) as threads:
        for scale, found in zip((1.0, 3.0), threads.map(many, (1.0, 3.0)), strict=True):
            expected = jax.jit(function)(x * np.float32(scale), *weights)
            np.testing.assert_allclose(found[0], expected, rtol=2e-5, atol=2e-5)
            assert all(np.array_equal(one, found[0]) for one in found)


def test_functions_that_are_compiled_already(tmp_path: Path) -> None:
    function, args = CASES["attention"]
    export_c(mlc_jit(function), *args, path=tmp_path / "attention")
    check(tmp_path, "attention", function, args, args)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    x = normal(4, 4)
    with pytest.raises(UnsupportedOpError, match=r"Fourier transforms .* --format jax"):
        export_c(lambda x: jnp.fft.fft(x).real, normal(4, 101), path=tmp_path / "f")
    with pytest.raises(UsageError, match="a function in C cannot be called 'my-function'"):
        export_c(jnp.tanh, x, path=tmp_path / "my-function")
    with pytest.raises(UsageError, match=r"ends in .a \(static\) or .so \(shared\)"):
        export_c(jnp.tanh, x, path=tmp_path / "f.mlc")
    with pytest.raises(UsageError, match="expected different positions"):
        export_c(jnp.tanh, x, path=tmp_path / "f", embed=(1,))
    with pytest.raises(UsageError, match="Cannot write"):
        export_c(jnp.tanh, x, path=tmp_path / "no" / "f")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("double", "a keyword"),
        ("class", "a keyword"),
        ("exp", "the C library"),
        ("expf", "the C library"),
        ("index", "the C library"),
        ("uint8_t", "the C library"),
        ("INT8_MAX", "the C library"),
        ("main", "where a program begins"),
        ("_Big", "names with two underscores"),
        ("a__b", "names with two underscores"),
        ("1st", "letters, digits and underscores"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".a", ".so"])
def test_names_that_mean_something_else(
    tmp_path: Path, name: str, suffix: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=f"cannot be called '{name}': .*{reason}"):
        export_c(jnp.tanh, normal(4, 4), path=tmp_path / f"{name}{suffix}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["softmax", "step", "expl1", "mean", "_small", "double_", "x2"])
def test_names_that_are_free(name: str) -> None:
    assert why_no_name(name) == ""


@pytest.mark.parametrize("whole", [False, True], ids=["what is needed", "all there is"])
def test_libraries_with_the_same_kernel_in_one_program(tmp_path: Path, whole: bool) -> None:
    """Each calls its own, which may be for another target; nothing but the functions is seen."""
    x = normal(40, 64)
    for name, target in (("narrow", runnable()[1]), ("own", "host")):
        export_c(jax.nn.softmax, x, path=tmp_path / name, target=target)
        symbols = subprocess.run(
            ["nm", "-g", "--defined-only", tmp_path / f"{name}.a"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert re.findall(r" [A-Z] (\w+)", symbols) == [name]
    assert only_kernel_id(tmp_path / "narrow.a") == only_kernel_id(tmp_path / "own.a")
    (tmp_path / "both.c").write_text("""
        #include <stdio.h>
        #include <stdlib.h>
        #include "narrow.h"
        #include "own.h"
        int main(void) {
            float *x = malloc(40 * 64 * 4), *a = malloc(40 * 64 * 4), *b = malloc(40 * 64 * 4);
            void *workspace = aligned_alloc(64, 1 << 20);
            if (fread(x, 4, 40 * 64, stdin) != 40 * 64) return 1;
            narrow(x, a, workspace);
            own(x, b, workspace);
            fwrite(a, 4, 40 * 64, stdout);
            fwrite(b, 4, 40 * 64, stdout);
            return NARROW_WORKSPACE_BYTES > 1 << 20 || OWN_WORKSPACE_BYTES > 1 << 20;
        }""")
    libraries = ["-Wl,--whole-archive"] * whole + [tmp_path / "narrow.a", tmp_path / "own.a"]
    subprocess.run(
        [
            CC,
            "-std=c11",
            "-Wall",
            "-Werror",
            f"-I{tmp_path}",
            tmp_path / "both.c",
            *libraries,
            "-Wl,--no-whole-archive",
            "-o",
            tmp_path / "both",
        ],
        check=True,
    )
    ran = subprocess.run([tmp_path / "both"], input=x.tobytes(), capture_output=True, check=True)
    for result in np.frombuffer(ran.stdout, np.float32).reshape(2, *x.shape):
        np.testing.assert_allclose(result, jax.nn.softmax(x), rtol=2e-5)


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model_in_c.py").write_text("import jax\ndef f(x):\n    return jax.nn.softmax(x)\n")
    result = CliRunner().invoke(
        main, ["export", "model_in_c:f", "--format", "c", "-o", "f", "--arg", "f32[8,64]"]
    )
    assert result.exit_code == 0 and "f.a, f.h: 1 kernel;" in result.output, result.output
    x = normal(8, 64)
    check(tmp_path, "f", jax.nn.softmax, [x], [x])
    shared = CliRunner().invoke(
        main, ["export", "model_in_c:f", "--format", "c", "-o", "f.so", "--arg", "f32[8,64]"]
    )
    assert shared.exit_code == 0 and "f.so, f.h: 1 kernel;" in shared.output, shared.output
    check(tmp_path, "f", jax.nn.softmax, [x], [x], library="f.so")
    several = CliRunner().invoke(
        main,
        [
            "export",
            "model_in_c:f",
            "--format",
            "c",
            "-o",
            "f",
            "--arg",
            "f32[8,64]",
            "--target",
            "x86-64-v2",
            "--target",
            "x86-64-v3",
        ],
    )
    assert several.exit_code == 2 and "one target" in several.output
