"""`from_torch`: PyTorch modules, what they take and return, and what it says of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hlo_mlc
from hlo_mlc.support.errors import UnsupportedOpError, UsageError

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir.fx")
nn = torch.nn


class Vision(nn.Module):
    """Convolutions with batch normalization, then attention over the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 5)

    def forward(self, x: Any) -> tuple[Any, Any]:
        y = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        tokens = y.flatten(2).transpose(1, 2)
        mixed, weights = self.attention(tokens, tokens, tokens)
        return torch.softmax(self.out(mixed.mean(1)), -1), weights


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 48), nn.Linear(48, 16)

    def forward(self, ids: Any) -> Any:
        x = self.table(ids)
        return (x + self.down(nn.functional.gelu(self.up(self.norm(x))))) @ self.table.weight.T


def check(module: Any, *args: Any) -> Any:
    torch.manual_seed(0)
    module = module.eval()
    ours = hlo_mlc.from_torch(module, *args, choose="ours")
    with torch.no_grad():
        expected = module(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = ours(*args)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(torch.from_dlpack(a).numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
    assert ours.report().coverage > 0.9
    return ours


def test_models() -> None:
    check(Vision(), torch.randn(2, 3, 16, 16))
    check(Language(), torch.randint(0, 40, (3, 7)))


def test_arrays_go_in_as_they_are() -> None:
    ours = check(Vision(), torch.randn(2, 3, 16, 16))
    x = torch.randn(2, 16, 16, 3).permute(0, 3, 1, 2)
    first = ours(x)
    for same in (x.numpy(), x.contiguous(), x.clone().requires_grad_()):
        for a, b in zip(ours(same), first, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    half = hlo_mlc.from_torch(nn.Tanh(), torch.zeros(4, 6, dtype=torch.bfloat16), choose="ours")
    x = torch.randn(6, 4).to(torch.bfloat16).T
    np.testing.assert_allclose(
        np.asarray(half(x)[0], np.float32), torch.tanh(x).float().numpy(), atol=8e-3
    )
    with pytest.raises(UsageError, match="Argument 0"):
        ours(torch.randn(2, 3, 16, 17))


def test_an_operator_without_a_stablehlo() -> None:
    class Decomposing(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.svd(x)[0]

    with pytest.raises(UnsupportedOpError, match=r"aten\._linalg_svd.*test_torch\.py:\d+"):
        hlo_mlc.from_torch(Decomposing(), torch.randn(4, 4))


def test_what_cannot_be_exported() -> None:
    class Deciding(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else x + 1

    with pytest.raises(UsageError, match=r"torch\.export cannot export Deciding"):
        hlo_mlc.from_torch(Deciding(), torch.randn(4))


class Recurrent(nn.Module):
    """What computes with its sizes: steps along time, the last of them, an average over all."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: Any) -> tuple[Any, Any]:
        batch, steps, _ = x.shape
        hidden = torch.tanh(self.mix(x.reshape(batch * steps, -1))).view(batch, steps, 16)
        weights = torch.arange(steps, device=x.device) / steps
        return self.out(hidden[:, -1]), (hidden[:, 1:] * weights[1:, None]).mean(1)


@pytest.mark.parametrize(
    ("make", "example", "free", "others"),
    [
        (Vision, (3, 3, 16, 16), (0,), [(1, 3, 16, 16), (7, 3, 16, 16)]),
        (Recurrent, (3, 5, 6), (0, 1), [(4, 9, 6), (1, 3, 6), (9, 5, 6)]),
    ],
)
def test_sizes_that_are_free(make: Any, example: Any, free: Any, others: Any) -> None:
    torch.manual_seed(0)
    module = make().eval()
    dims = {axis: torch.export.Dim(f"d{axis}", min=3 * axis, max=50) for axis in free}
    ours = hlo_mlc.from_torch(
        module, torch.randn(example), dynamic_shapes={"x": dims}, choose="ours"
    )
    for shape in (example, *others):
        x = torch.randn(shape)
        with torch.no_grad():
            expected = module(x)
        for a, b in zip(ours(x), expected, strict=True):
            np.testing.assert_allclose(
                torch.from_dlpack(a).numpy(), b.numpy(), rtol=1e-4, atol=1e-5
            )
        assert ours.report(x.numpy()).coverage > 0.9
    with pytest.raises(UsageError, match="Argument 0"):
        ours(torch.randn(*example[:-1], example[-1] + 1))
    with pytest.raises(UsageError, match=r"dimension 0 of argument 0, 51, is to be .* <= 50"):
        ours(torch.randn(51, *example[1:]))
