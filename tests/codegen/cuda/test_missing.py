"""What is said where CuPy, NVRTC or NVIDIA's driver is missing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.codegen.cuda import compile as nvrtc
from hlo_mlc.support.errors import CodegenError

BINDING = "cupy_backends.cuda.libs.nvrtc"
X = jax.ShapeDtypeStruct((64, 300), jnp.float32)


class WithoutLibrary(ModuleType):
    """CuPy's binding on a machine without libnvrtc."""

    def getVersion(self) -> tuple[int, int]:
        raise RuntimeError("CuPy failed to load libnvrtc.so.13: OSError: no such file")


MISSING = {"CuPy": (None, BINDING), "NVRTC": (WithoutLibrary(BINDING), "libnvrtc.so.13")}


@pytest.fixture(params=MISSING)
def said(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What a message must name of what is missing."""
    module, named = MISSING[request.param]
    monkeypatch.setitem(sys.modules, BINDING, module)
    nvrtc._nvrtc.cache_clear()
    yield named
    nvrtc._nvrtc.cache_clear()


def test_kernels_that_were_asked_for_are_an_error(said: str) -> None:
    asked = mlc_jit(lambda x: jnp.sin(x) * 7, choose="ours")
    with pytest.raises(CodegenError) as caught:
        asked.trace(X).lower(lowering_platforms=("cuda",))
    assert said in str(caught.value)
    assert "pip install 'hlo-mlc[cuda]'" in str(caught.value)


def test_programs_run_without(said: str) -> None:
    """Nobody asked for kernels on GPUs: XLA has all of the program, and the report says so."""
    free = mlc_jit(lambda x: jnp.sin(x) * 7)
    text = free.trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert "hlo_mlc_kernel" not in text
    assert "XLA runs all of it" in str(free.explain())


DRIVER = textwrap.dedent("""
    import jax, numpy as np
    from hlo_mlc.runtime import cuda, library

    own = library.load()
    own.mlc_cuda_use_driver({path!r}.encode())
    jax.local_devices(backend="cpu")
    jax.ffi.register_ffi_type("state", {{
        "type_id": jax.ffi.pycapsule(own.mlc_cuda_ffi_state_type_id()),
        "type_info": jax.ffi.pycapsule(own.mlc_cuda_ffi_state_type_info())}}, platform="cpu")
    jax.ffi.register_ffi_target("kernel", {{
        "instantiate": jax.ffi.pycapsule(own.mlc_cuda_ffi_instantiate),
        "initialize": jax.ffi.pycapsule(own.mlc_cuda_ffi_initialize),
        "execute": jax.ffi.pycapsule(own.mlc_cuda_ffi_execute_on_host)}}, platform="cpu")
    cuda.publish("mine", b"machine code", ("function",), (0, 1, 32, 0, 1, 0, 0, 0))
    call = jax.ffi.ffi_call("kernel", jax.ShapeDtypeStruct((4,), np.float32))
    try:
        jax.block_until_ready(jax.jit(lambda x: call(
            x, id="mine", dims=np.zeros(0, np.int64)))(np.ones(4, np.float32)))
    except Exception as error:
        print(error)
""")


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("/nowhere/libcuda.so.1", "cannot open shared object file"),
        ("libm.so.6", "it lacks cuCtxGetDevice, cuModuleLoadData"),
    ],
)
def test_a_missing_driver_is_named_with_the_kernel(library: str, said: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", DRIVER.format(path=library)], capture_output=True, text=True
    )
    assert "no CUDA driver for kernel mine" in result.stdout, result.stderr
    assert said in result.stdout
