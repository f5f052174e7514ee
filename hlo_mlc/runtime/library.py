"""The native runtime library: finding it, loading it, registering it with JAX.

Its functions are plain C (`custom_calls/mlc_abi.h`), reached through ctypes, so that one binary
serves every Python version.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from hlo_mlc.support.errors import RuntimeLibraryError
from hlo_mlc.support.locks import process_lock

TARGET_NAME = "hlo_mlc_kernel"
"""The custom call target of every kernel."""

ABI_VERSION = 6
"""The version of `mlc_abi.h` that this package speaks."""

_STATE_TYPE_NAME = "hlo_mlc_kernel_state"
_INSTALL_ADVICE = (
    "Install hlo_mlc with pip (`pip install .`, or `pip install -e .` in a checkout); "
    "that needs a C++17 compiler unless there is a wheel for this platform."
)

_pointer = ctypes.c_void_p
_int64_pointer = ctypes.POINTER(ctypes.c_int64)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "mlc_abi_version": (ctypes.c_int64, []),
    "mlc_code_reserve": (_pointer, [ctypes.c_int64]),
    "mlc_code_publish": (ctypes.c_int, [_pointer, ctypes.c_char_p, ctypes.c_int64]),
    "mlc_code_release": (None, [_pointer]),
    "mlc_variant_set": (ctypes.c_int, [ctypes.c_char_p, _pointer, ctypes.c_int64]),
    "mlc_variant_promise": (_pointer, [ctypes.c_char_p, ctypes.c_int64]),
    "mlc_variant_keep": (None, [_pointer, _pointer, ctypes.c_int]),
    "mlc_failed_by": (ctypes.c_int, [_pointer, ctypes.c_char_p]),
    "mlc_variant_exists": (ctypes.c_int, [ctypes.c_char_p]),
    "mlc_variant_remove": (ctypes.c_int, [ctypes.c_char_p]),
    "mlc_variant_remove_unused": (ctypes.c_int, [ctypes.c_char_p]),
    "mlc_variant_describe": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p]),
    "mlc_profile_enable": (None, [ctypes.c_int]),
    "mlc_profile_read": (ctypes.c_int, [ctypes.c_char_p, _int64_pointer, _int64_pointer]),
    "mlc_profile_reset": (None, []),
    "mlc_trace_begin": (_pointer, [ctypes.c_int64]),
    "mlc_trace_end": (None, [_pointer]),
    "mlc_trace_release": (None, [_pointer]),
    "mlc_trace_lane": (ctypes.c_int, [_pointer, ctypes.c_int64, _pointer]),
    "mlc_trace_kernel": (ctypes.c_char_p, [_pointer, ctypes.c_int64]),
    "mlc_run": (ctypes.c_int, [_pointer, _pointer, ctypes.c_int64, ctypes.c_int64]),
    "mlc_fault": (ctypes.c_char_p, []),
    "mlc_cuda_set": (
        ctypes.c_int,
        [
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_int64,
            ctypes.POINTER(ctypes.c_char_p),
            ctypes.c_int64,
            _int64_pointer,
            ctypes.c_int64,
            ctypes.c_int64,
        ],
    ),
    "mlc_cuda_use_driver": (None, [ctypes.c_char_p]),
    "mlc_cuda_ffi_state_type_id": (_pointer, []),
    "mlc_cuda_ffi_state_type_info": (_pointer, []),
    "mlc_ffi_state_type_id": (_pointer, []),
    "mlc_ffi_state_type_info": (_pointer, []),
}

_registration_lock = process_lock()
_registered = False


@functools.cache
def load() -> ctypes.CDLL:
    """The library, with the signatures of its functions declared.

    Raises: RuntimeLibraryError when it is missing, cannot be loaded or has another ABI version.
    """
    path = _find()
    try:
        library = ctypes.CDLL(path)
        version = _declared(library, "mlc_abi_version")()
        if version != ABI_VERSION:  # before the others are asked for: it may not have all of them
            raise RuntimeLibraryError(
                f"The native runtime library {path} has ABI version {version}, this package "
                f"expects {ABI_VERSION}: they are from different versions of hlo_mlc. "
                f"{_INSTALL_ADVICE}"
            )
        for name in _SIGNATURES:
            _declared(library, name)
    except (OSError, AttributeError) as error:
        raise RuntimeLibraryError(
            f"The native runtime library {path} cannot be loaded: {error}. {_INSTALL_ADVICE}"
        ) from error
    return library


def _declared(library: ctypes.CDLL, name: str) -> Callable[..., Any]:
    function = getattr(library, name)
    function.restype, function.argtypes = _SIGNATURES[name]
    return function


def register_with_jax() -> None:
    """Makes the custom call target known to XLA's CPU backend; does nothing the second time.

    Starts the CPU backend if it does not run yet: state types registered before it are lost to it,
    and its start then fails.
    """
    global _registered
    if _registered:
        return
    import jax  # processes that only run kernels (tuning/worker.py) start without it

    library = load()
    with _registration_lock:
        if _registered:
            return
        jax.local_devices(backend="cpu")
        register(library, "mlc_ffi", _STATE_TYPE_NAME, ("instantiate", "execute"), "cpu")
        _registered = True


def register(
    own: ctypes.CDLL, prefix: str, state: str, stages: Sequence[str], platform: str
) -> None:
    """Makes the type of a handler's state, and its functions for the stages of a call, known to a
    backend of XLA's."""
    import jax

    kind = {
        part: jax.ffi.pycapsule(getattr(own, f"{prefix}_state_{part}")())
        for part in ("type_id", "type_info")
    }
    jax.ffi.register_ffi_type(state, kind, platform=platform)
    handler = {stage: jax.ffi.pycapsule(getattr(own, f"{prefix}_{stage}")) for stage in stages}
    jax.ffi.register_ffi_target(TARGET_NAME, handler, platform=platform)


def _find() -> str:
    # As an import would find it, which also holds for editable installs, where the library lies
    # in another folder than the Python files. It is not a Python module and is never imported.
    specification = importlib.util.find_spec("hlo_mlc._runtime")
    if specification is None or specification.origin is None:
        raise RuntimeLibraryError(
            f"The native runtime library of hlo_mlc (hlo_mlc/_runtime.so) was not found. "
            f"{_INSTALL_ADVICE}"
        )
    return specification.origin
