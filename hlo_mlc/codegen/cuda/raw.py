"""Generated functions as `cupy.RawKernel`s, to be launched by hand on a machine with a GPU."""

from __future__ import annotations

import importlib

from hlo_mlc.codegen.cuda.compile import OPTIONS
from hlo_mlc.codegen.cuda.plan import CudaSource
from hlo_mlc.support.errors import CodegenError


def raw_kernel(source: CudaSource, function: str) -> object:
    """One function of a source as a `cupy.RawKernel`; CuPy compiles it when it is first launched.

    What `shared_bytes` of a launch says has to be set as `max_dynamic_shared_size_bytes` and given
    to the call as `shared_mem`.
    CuPy flushes subnormals to zero in all that it compiles; our own machine code does not.

    Raises: CodegenError where CuPy is missing.
    """
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise CodegenError(
            f"Expected CuPy for a RawKernel ({error}); pip install 'hlo-mlc[cuda]'"
        ) from error
    options = tuple(option for option in OPTIONS if not option.startswith("-ftz"))
    return cupy.RawKernel(source.text, function, options=options)
