"""What every test relies on: eight CPU devices, a cache of its own, no options from outside."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

for _name in [name for name in os.environ if name.startswith("HLO_MLC_")]:
    del os.environ[_name]
_CACHE = tempfile.mkdtemp(prefix="hlo_mlc_tests_")
os.environ["HLO_MLC_CACHE"] = _CACHE
# Read when JAX starts its CPU backend, so it has to stand here before any test imports JAX.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)
