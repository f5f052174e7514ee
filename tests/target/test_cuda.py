"""GPU architectures by name and by what a GPU says of itself."""

from __future__ import annotations

import pytest

from hlo_mlc.support.errors import UnknownTargetError
from hlo_mlc.target import cuda


def test_names() -> None:
    assert [cuda.named(name).name for name in cuda.names()] == ["sm_80", "sm_90"]
    with pytest.raises(UnknownTargetError, match="no CUDA target 'sm_35'; expected one of sm_80"):
        cuda.named("sm_35")


@pytest.mark.parametrize(
    ("capability", "name"), [("8.0", "sm_80"), ("8.6", "sm_80"), ("8.9", "sm_80"), ("9.0", "sm_90")]
)
def test_capabilities(capability: str, name: str) -> None:
    assert cuda.for_device(capability).name == name


@pytest.mark.parametrize("capability", ["7.5", "10.0", "12.0"])
def test_machine_code_does_not_run_on_other_major_versions(capability: str) -> None:
    with pytest.raises(UnknownTargetError, match=f"compute capability {capability}"):
        cuda.for_device(capability)


@pytest.mark.parametrize(("capability", "shared_kib"), [("8.0", 163), ("8.6", 99), ("8.9", 99)])
def test_some_have_less_shared_memory(capability: str, shared_kib: int) -> None:
    assert cuda.for_device(capability).shared_bytes == shared_kib * cuda.KIB


def test_cards_differ_in_their_memory_but_not_in_their_code() -> None:
    h100, h200 = (cuda.for_device("9.0", f"NVIDIA {name}") for name in ("H100 80GB HBM3", "H200"))
    assert (h100.memory_bytes_per_us, h200.memory_bytes_per_us) == (3.35e6, 4.8e6)
    assert h100 == h200 == cuda.named("sm_90")
    assert str(h100) == str(h200)  # part of the key under which machine code is kept
