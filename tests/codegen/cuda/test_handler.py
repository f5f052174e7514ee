"""The custom call for GPUs under `jax.jit`: the real handler, on a stand-in for the driver."""

from __future__ import annotations

import ctypes
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.runtime import cuda, library

TARGET = "hlo_mlc_kernel_on_stand_in"
DRIVER = Path(__file__).parent / "fake_driver.cc"


@pytest.fixture(scope="module")
def driver(emulator) -> ctypes.CDLL:
    """The stand-in in the driver's place, and the handler registered for the CPU."""
    path = emulator.build(DRIVER.read_text(), "-std=c++17", "-O1", "-fPIC", "-shared")
    own = library.load()
    own.mlc_cuda_use_driver(str(path).encode())
    jax.local_devices(backend="cpu")
    jax.ffi.register_ffi_type(
        f"{TARGET}_state",
        {
            "type_id": jax.ffi.pycapsule(own.mlc_cuda_ffi_state_type_id()),
            "type_info": jax.ffi.pycapsule(own.mlc_cuda_ffi_state_type_info()),
        },
        platform="cpu",
    )
    jax.ffi.register_ffi_target(
        TARGET,
        {
            "instantiate": jax.ffi.pycapsule(own.mlc_cuda_ffi_instantiate),
            "initialize": jax.ffi.pycapsule(own.mlc_cuda_ffi_initialize),
            "execute": jax.ffi.pycapsule(own.mlc_cuda_ffi_execute_on_host),
        },
        platform="cpu",
    )
    return ctypes.CDLL(str(path))


def call(kernel_id, results, *operands):
    """A program around the custom call, run."""
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]

    def program(*args):
        doubled = [a + a for a in args]
        outs = jax.ffi.ffi_call(TARGET, shapes)(*doubled, id=kernel_id, dims=np.zeros(0, np.int64))
        return [out - 0 for out in outs]

    return [np.asarray(r) for r in jax.block_until_ready(jax.jit(program)(*operands))]


FUNCTIONS = {
    "softmax": lambda x: jax.nn.softmax(x),
    "several launches with scratch": lambda x: x.reshape(-1).sum(),
    "a loop": lambda x: lax.fori_loop(0, 4, lambda i, c: c * 0.5 + jnp.roll(c, 1), x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_run_in_programs(driver, emulator, cuda_source, take_apart, arrays, name):
    (x,) = arrays("float32", (20, 2600))
    parts = take_apart(FUNCTIONS[name], x)
    (program,) = parts.programs
    source = cuda_source(program)
    cuda.publish(f"test {name}", emulator.image(source), source.functions, source.plan)
    results = [(b.shape, b.dtype.numpy) for b in program.results]
    if source.scratch_bytes:
        results.append(((source.scratch_bytes,), np.uint8))
    assert source.scratch_bytes or not name.endswith("scratch")
    actual, *_ = call(f"test {name}", results, x)
    expected = np.asarray(jax.jit(FUNCTIONS[name])(x + x))
    np.testing.assert_allclose(actual, expected, 1e-4, 1e-4)
    loads = driver.fake_loads()
    again, *_ = call(f"test {name}", results, x + 1)
    assert driver.fake_loads() == loads, "machine code is loaded once for a device"
    np.testing.assert_allclose(again, np.asarray(jax.jit(FUNCTIONS[name])(2 * x + 2)), 1e-4, 1e-4)


def test_complex_numbers_go_in_and_come_out_as_a_whole(
    driver, emulator, cuda_source, take_apart, arrays
):
    (x,) = arrays("complex64", (20, 31))
    source = cuda_source(take_apart(lambda x: (x * 2j).conj().T, x, platform="cuda").programs[0])
    cuda.publish("complex", emulator.image(source), source.functions, source.plan)
    (actual,) = call("complex", [((31, 20), np.complex64)], x)
    np.testing.assert_allclose(actual, (x * 4j).conj().T, 1e-6)


def test_every_device_has_its_own_module(driver, emulator, cuda_source, take_apart, arrays):
    (x,) = arrays("float32", (300,))
    source = cuda_source(take_apart(lambda x: jnp.tanh(x), x).programs[0])
    cuda.publish("on several", emulator.image(source), source.functions, source.plan)
    before = driver.fake_loads()
    try:
        for number, device in enumerate((0, 1, 3, 1, 0, 3)):
            driver.fake_use_device(device)
            (actual,) = call("on several", [((300,), np.float32)], x + number)
            np.testing.assert_allclose(actual, np.tanh(2 * x + 2 * number), 1e-5, 1e-5)
            assert driver.fake_loads() - before == min(3, number + 1)
    finally:
        driver.fake_use_device(0)


def test_unknown_kernels_are_named(driver):
    with pytest.raises(Exception, match="kernel 'never published', which was not compiled"):
        call("never published", [((4,), np.float32)], np.ones(4, np.float32))


def test_faults_of_the_driver_are_named(driver):
    cuda.publish("broken", b"no machine code\0", ("function",), (0, 1, 32, 0, 1, 0, 0, 0))
    with pytest.raises(Exception, match=r"CUDA_ERROR_INVALID_IMAGE.*for kernel broken"):
        call("broken", [((4,), np.float32)], np.ones(4, np.float32))


def test_missing_functions_are_named(driver, emulator, cuda_source, take_apart, arrays):
    (x,) = arrays("float32", (40,))
    source = cuda_source(take_apart(lambda x: x + 1, x).programs[0])
    cuda.publish("incomplete", emulator.image(source), ("absent",), (0, 1, 32, 0, 1, 0, 0, 0))
    with pytest.raises(Exception, match=r"CUDA_ERROR_NOT_FOUND.* for absent of kernel incomplete"):
        call("incomplete", [((4,), np.float32)], np.ones(4, np.float32))


def test_shared_memory_that_a_device_lacks_is_named(
    driver, emulator, cuda_source, take_apart, arrays
):
    (x,) = arrays("float32", (40,))
    source = cuda_source(take_apart(lambda x: x + 1, x).programs[0])
    cuda.publish(
        "greedy", emulator.image(source), source.functions, (0, 1, 32, 1 << 19, 2, 0, 1, 0, 0)
    )
    with pytest.raises(Exception, match=r"524288 bytes of shared memory of \w+ of kernel greedy"):
        call("greedy", [((40,), np.float32)], x)


def test_launches_that_fail_are_named(driver, emulator, cuda_source, take_apart, arrays):
    """Threads that wait for others in vain, of which the emulator would tell."""
    (x,) = arrays("float32", (3, 40))
    source = cuda_source(take_apart(jax.nn.softmax, x).programs[0])
    (launch,) = source.launches
    fewer = list(source.plan)
    assert fewer[2] == launch.threads
    fewer[2] = 7
    cuda.publish("too few threads", emulator.image(source), source.functions, fewer)
    with pytest.raises(Exception, match=r"cuLaunchKernel: CUDA_ERROR_LAUNCH_FAI.* of kernel too"):
        call("too few threads", [(x.shape, np.float32)], x)


def test_a_missing_context_is_named(driver, emulator, cuda_source, take_apart, arrays):
    (x,) = arrays("float32", (41,))
    source = cuda_source(take_apart(lambda x: x + 1, x).programs[0])
    cuda.publish("lost", emulator.image(source), source.functions, source.plan)
    driver.fake_use_device(-1)
    try:
        with pytest.raises(Exception, match=r"CUDA_ERROR_INVALID_CONTEXT .* for kernel lost"):
            call("lost", [(x.shape, np.float32)], x)
    finally:
        driver.fake_use_device(0)


def test_an_execution_only_launches(driver, emulator, cuda_source, take_apart, arrays):
    """So that it can be captured into a command buffer: all else is done before the first one."""
    (x,) = arrays("float32", (3, 40_000))  # of rows in shared memory that has to be asked for
    source = cuda_source(take_apart(jax.nn.softmax, x, platform="cuda").programs[0])
    assert any(launch.shared_bytes for launch in source.launches)
    results = [(x.shape, np.float32)]
    assert not source.scratch_bytes
    cuda.publish("captured", emulator.image(source), source.functions, source.plan)
    driver.fake_capture(1)
    try:
        with pytest.raises(Exception, match="CAPTURE_UNSUPPORTED"):
            call("captured", results, x)
        driver.fake_capture(0)
        call("captured", results, x)
        driver.fake_capture(1)
        (actual,) = call("captured", results, x)
    finally:
        driver.fake_capture(0)
    np.testing.assert_allclose(actual, np.asarray(jax.nn.softmax(x + x)), 1e-4, 1e-6)


METADATA = """
#include "xla/ffi/api/c_api.h"
extern "C" int describe(XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*), int* minor_version) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  if (handler(&frame) != nullptr) return -1;
  *minor_version = metadata.api_version.minor_version;
  return static_cast<int>(metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
}
"""


def test_xla_is_told_that_it_may_be_captured(emulator):
    """What XLA asks a handler for when it is registered."""
    path = emulator.build(METADATA, "-std=c++17", "-fPIC", "-shared", "-I", jax.ffi.include_dir())
    describe, own = ctypes.CDLL(str(path)).describe, library.load()
    minor = ctypes.c_int(-1)
    captured = {
        name: describe(getattr(own, name), ctypes.byref(minor))
        for name in ("mlc_cuda_ffi_execute", "mlc_cuda_ffi_execute_on_host", "mlc_ffi_execute")
    }
    assert captured == {
        "mlc_cuda_ffi_execute": 1,
        "mlc_cuda_ffi_execute_on_host": 0,
        "mlc_ffi_execute": 0,
    }
    assert minor.value >= 3


def test_too_few_buffers(driver, emulator, cuda_source, take_apart, arrays):
    (x,) = arrays("float32", (40,))
    source = cuda_source(take_apart(lambda x: x + 1, x).programs[0])
    plan = (0, 1, 32, 0, 2, 0, 7, 0, 0)
    cuda.publish("too few", emulator.image(source), source.functions, plan)
    with pytest.raises(Exception, match="kernel too few expects more operands and results"):
        call("too few", [((4,), np.float32)], np.ones(4, np.float32))


@pytest.mark.parametrize(
    "plan",
    [
        (1, 1, 32, 0, 0, 0, 0),
        (0, 0, 32, 0, 0, 0, 0),
        (0, 1, 4096, 0, 0, 0, 0),
        (0, 1, 32, 1 << 30, 0, 0, 0),
        (0, 1, 32, 0, 2, 0),
        (0, 1, 32, 0, 0, 2, 0),
        (0, 1, 32, 0, 0, 0, 0, 0),
    ],
)
def test_malformed_plans_are_refused(plan):
    with pytest.raises(Exception, match="were refused"):
        cuda.publish("malformed", b"\0", ("function",), plan)
    assert not cuda.exists("malformed")
