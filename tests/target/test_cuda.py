"""GPU architectures by name and by what a GPU says of itself."""

from __future__ import annotations

import pytest

from hlo_mlc.support.errors import UnknownTargetError
from hlo_mlc.target import cuda


def test_names() -> None:
    assert [cuda.named(name).name for name in cuda.names()] == ["sm_80", "sm_90"]
    with pytest.raises(UnknownTargetError, match="no CUDA target 'sm_35'; expected one of sm_80"):
        cuda.named("sm_35")


@pytest.mark.parametrize(("capability", "name"), [
    ("8.0", "sm_80"), ("8.6", "sm_80"), ("8.9", "sm_80"), ("9.0", "sm_90")])
def test_capabilities(capability: str, name: str) -> None:
    assert cuda.for_capability(capability).name == name


@pytest.mark.parametrize("capability", ["7.5", "10.0", "12.0"])
def test_machine_code_does_not_run_on_other_major_versions(capability: str) -> None:
    with pytest.raises(UnknownTargetError, match=f"compute capability {capability}"):
        cuda.for_capability(capability)
