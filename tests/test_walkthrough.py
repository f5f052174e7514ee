"""docs/walkthrough.md is what the compiler does today."""

from __future__ import annotations

import runpy
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.target.cpu import host

_ROOT = Path(__file__).parents[1]
_SCRIPT = runpy.run_path(str(_ROOT / "scripts" / "walkthrough.py"))


@pytest.mark.skipif(not host().is_x86, reason="its machine code is for x86-64")
def test_the_page_is_up_to_date() -> None:
    page = (_ROOT / "docs" / "walkthrough.md").read_text()
    assert _SCRIPT["page"](_SCRIPT["dump"]()) == page, "run python scripts/walkthrough.py"


def test_a_stage_shows_what_it_is_about() -> None:
    """The words between the quotations speak of these."""
    files = _SCRIPT["dump"]()
    assert "call @_where" in files["00"]
    assert len(files["20"]) < len(files["10"])
    assert "taken:" in files["30"]
    assert "left to XLA" not in files["30"]
    assert "along" in files["40"]
    assert "shared=1" in files["40"]
    assert all(word in files["60"] for word in ("parallel", "vectorize", "unroll"))
    assert "custom_call" in files["99"]
    naive, rewrites = _SCRIPT["_history"](files["50"])
    assert "vectorize" not in naive
    assert {"rfactor", "contract", "parallel"} <= {r.step.partition("(")[0] for r in rewrites}
    last = rewrites[-1].loops.splitlines()[1:]
    assert [line for line in last if line] == files["60"].splitlines()[1:]


def test_it_is_a_softmax() -> None:
    rng = np.random.default_rng(0)
    scores, mask = rng.standard_normal((5, 37)).astype("f4"), rng.random((5, 37)) < 0.5
    weights = np.exp(np.where(mask, scores, -np.inf), dtype="f8")
    compiled = mlc_jit(_SCRIPT["masked_softmax"], choose="ours")
    np.testing.assert_allclose(
        compiled(jnp.asarray(scores), jnp.asarray(mask)),
        weights / weights.sum(-1, keepdims=True),
        rtol=1e-5,
    )
