"""Every `jax.jit` through us, in programs and libraries that know nothing of it."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_mlc
from hlo_mlc import mlc_jit
from hlo_mlc.interop import compat, primitive
from hlo_mlc.support.errors import UnknownTargetError, UsageError
from hlo_mlc.support.options import Options

LIBRARY = Path(__file__).parent / "library_of_jits.py"
X = np.linspace(-1, 1, 8, dtype=np.float32)
EXPECTED = np.tanh(X) * 2


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    assert jax.jit is compat.jit
    yield
    hlo_mlc.uninstall()
    jax.jit = compat.jit


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[[], ModuleType]:
    """Imports the stand-in, another one each time."""
    numbers = itertools.count()

    def fresh() -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"library{next(numbers)}", LIBRARY)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return fresh


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of functions that we compile into kernels."""
    names: list[str] = []
    compile_function = primitive.compile_function

    def listen(module: Any, subject: Any, *rest: Any, **named: Any) -> tuple[Any, Any]:
        compiled, report = compile_function(module, subject, *rest, **named)
        names.extend([subject.name] if compiled is not None else [])
        return compiled, report

    monkeypatch.setattr(primitive, "compile_function", listen)
    return names


def is_routed(function: Callable, compiled: list[str]) -> bool:
    """Whether a call of it, which has to be right, runs in our kernels."""
    compiled.clear()
    jax.clear_caches()
    np.testing.assert_allclose(function(X), EXPECTED, rtol=1e-6)
    return bool(compiled)


def test_every_use_before_and_after(library, compiled: list[str]) -> None:
    before = library()
    made_before = [use() for use in before.USES]
    hlo_mlc.install(choose="ours")
    after = library()
    for module in (before, after):
        for use in module.USES:
            assert is_routed(use(), compiled), use.__name__
    assert is_routed(after.at_import, compiled)
    assert is_routed(lambda x: after.at_import_with_options(x, 2), compiled)
    # What was jitted before is compiled as a part of what is routed, alone it stays with XLA.
    assert not is_routed(before.at_import, compiled)
    assert is_routed(jax.jit(lambda x: before.at_import(x)), compiled)
    assert not any(is_routed(function, compiled) for function in made_before[:-1])


def test_uninstall_restores(library, compiled: list[str]) -> None:
    before = library()
    names = [vars(module) for module in (jax, before)]
    found = [dict(n) for n in names]
    hlo_mlc.install(choose="ours")
    assert jax.jit is not compat.jit
    kept, after, made = jax.jit, library(), before.by_attribute()
    hlo_mlc.uninstall()
    assert [dict(n) for n in names] == found
    assert before.jit_with_count.func is after.jit_with_count.func is after.jit is compat.jit
    assert not any(
        is_routed(use(), compiled) for module in (before, after) for use in module.USES[:-1]
    )
    assert not is_routed(kept(lambda x: jnp.tanh(x) * 2), compiled)
    assert is_routed(made, compiled)
    hlo_mlc.uninstall()


def test_in_place_of_jax_jit(library, compiled: list[str]) -> None:
    jax.jit = mlc_jit
    module = library()
    for use in module.USES:
        assert use is module.of_what_is_jitted or use()(X).shape == X.shape
    assert is_routed(jax.jit(lambda x: jnp.tanh(x) * 2, choose="ours"), compiled)
    assert is_routed(mlc_jit(jax.jit(lambda x: jnp.tanh(x) * 2), choose="ours"), compiled)


def test_what_jax_jits_itself_is_not_routed(compiled: list[str]) -> None:
    hlo_mlc.install(choose="ours")
    spec = importlib.util.spec_from_file_location("jax.example", LIBRARY)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    assert not is_routed(theirs.at_import, compiled)
    assert not is_routed(theirs.by_attribute(), compiled)
    assert not is_routed(lambda x: jnp.linalg.norm(x) * 0 + jnp.tanh(x) * 2, compiled)
    assert is_routed(jax.jit(theirs.at_import), compiled)


def test_the_stand_in_looks_like_jax_jit() -> None:
    hlo_mlc.install()
    assert inspect.signature(jax.jit) == inspect.signature(compat.jit)
    assert (jax.jit.__name__, jax.jit.__doc__) == (compat.jit.__name__, compat.jit.__doc__)
    with pytest.raises(TypeError, match="Expected a callable value"):
        jax.jit(3)
    with pytest.raises(TypeError, match="static_argnum"):
        jax.jit(static_argnum=1)


def test_options(compiled: list[str]) -> None:
    hlo_mlc.install(choose="xla")
    assert not is_routed(jax.jit(lambda x: jnp.tanh(x) * 2), compiled)
    hlo_mlc.install(choose="ours")
    assert is_routed(jax.jit(lambda x: jnp.tanh(x) * 2), compiled)
    with pytest.raises(UsageError, match="choose='our'"):
        hlo_mlc.install(choose="our")
    with pytest.raises(UnknownTargetError, match="'tpu'"), hlo_mlc.enabled(target="tpu"):
        pass
    assert is_routed(jax.jit(lambda x: jnp.tanh(x) * 2), compiled)
    hlo_mlc.uninstall()
    assert jax.jit is compat.jit


def test_enabled_nests_and_comes_before_install(compiled: list[str]) -> None:
    def routed() -> bool:
        return is_routed(jax.jit(lambda x: jnp.tanh(x) * 2), compiled)

    with hlo_mlc.enabled(choose="ours"):
        assert routed()
        with hlo_mlc.enabled(choose="xla"):
            assert not routed()
            hlo_mlc.install(choose="ours")
            assert not routed()
        assert routed()
        hlo_mlc.uninstall()
        assert routed()
    assert jax.jit is compat.jit
    with pytest.raises(ZeroDivisionError), hlo_mlc.enabled():
        raise ZeroDivisionError
    assert jax.jit is compat.jit


def test_enabled_holds_for_its_thread() -> None:
    entered, checked = threading.Barrier(2), threading.Barrier(2)
    types: dict[str, Any] = {}

    def inside() -> None:
        with hlo_mlc.enabled(choose="ours"):
            entered.wait()
            types["inside"] = jax.jit(lambda x: x)
            checked.wait()

    thread = threading.Thread(target=inside)
    thread.start()
    entered.wait()
    outside = jax.jit(lambda x: x)
    checked.wait()
    thread.join()
    assert hasattr(types["inside"], "explain") and not hasattr(outside, "explain")
    assert jax.jit is compat.jit


def test_our_own_code_takes_jaxs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("our code calls what stands for jax.jit")

    monkeypatch.setattr(jax, "jit", refuse)
    function = mlc_jit(lambda x: jnp.tanh(x) * 2, choose="ours")
    hlo_mlc.export(function, X, path=tmp_path / "f.mlc")
    hlo_mlc.export_c(function, X, path=tmp_path / "f")
    np.testing.assert_allclose(hlo_mlc.load(tmp_path / "f.mlc")(X), EXPECTED, rtol=1e-6)
    module = hlo_mlc.compile_stablehlo(function.choosing("xla").lower(X).as_text())
    np.testing.assert_allclose(module(X)[0], EXPECTED, rtol=1e-6)
    str(function.explain(X))


PROGRAM = """
import sys
import jax, jax.numpy as jnp
from jax import jit
@jit
def f(x):
    return jnp.tanh(x) * 2
if __name__ == "__main__":
    print(sys.argv[1:], "custom_call" in f.lower(jnp.ones(8)).as_text())
"""


def ran(*command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    cache = str(Options.from_environment().cache_dir)
    paths = os.pathsep.join(
        [str(Path(hlo_mlc.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"HLO_MLC_CACHE": cache, "PYTHONPATH": paths} | environment,
    )


def test_a_script(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("")
    for command in (["-m", "hlo_mlc", "program.py"], ["-m", "hlo_mlc", "-m", "program"]):
        out = ran(*command, "-m", "b", folder=tmp_path, HLO_MLC_CHOOSE="ours")
        assert out.stdout == "['-m', 'b'] True\n", out.stderr
    (tmp_path / "program.py").write_text("import beside, sys; sys.exit(int(sys.argv[1]))")
    assert ran("-m", "hlo_mlc", str(tmp_path / "program.py"), "3", folder=Path("/")).returncode == 3


def test_misuse_of_the_script(tmp_path: Path) -> None:
    assert "usage: python -m hlo_mlc script.py" in ran("-m", "hlo_mlc", folder=tmp_path).stderr
    assert ran("-m", "hlo_mlc", "--help", folder=tmp_path).returncode == 0
    missing = ran("-m", "hlo_mlc", "nothing.py", folder=tmp_path)
    assert (missing.returncode, missing.stderr) == (2, "error: there is no program nothing.py\n")
    for name in ("nothing", "nothing.at.all"):
        missing = ran("-m", "hlo_mlc", "-m", name, folder=tmp_path)
        assert (missing.returncode, missing.stderr) == (2, f"error: there is no module {name}\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import not_installed")
    (tmp_path / "package" / "train.py").write_text("")
    broken = ran("-m", "hlo_mlc", "-m", "package.train", folder=tmp_path)
    assert broken.stderr.endswith("No module named 'not_installed'\n")
    (tmp_path / "bench").mkdir()
    command = ran("-m", "hlo_mlc", "bench", folder=tmp_path)
    assert command.returncode == 2 and "as a command: hlo-mlc bench" in command.stderr
    (tmp_path / "empty.py").write_text("")
    wrong = ran("-m", "hlo_mlc", "empty.py", folder=tmp_path, HLO_MLC_CHOOSE="our")
    assert wrong.returncode == 1 and wrong.stderr.startswith("error: Environment variable")


def test_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"import hlo_mlc\n{PROGRAM}")
    for value, routed in (("1", True), ("0", False), ("", False)):
        out = ran("program.py", folder=tmp_path, HLO_MLC_ENABLE=value, HLO_MLC_CHOOSE="ours")
        assert out.stdout == f"[] {routed}\n", out.stderr
    wrong = ran("program.py", folder=tmp_path, HLO_MLC_ENABLE="yes")
    assert "HLO_MLC_ENABLE='yes': expected 0 or 1" in wrong.stderr


def test_importing_alone_needs_no_jax(tmp_path: Path) -> None:
    line = "import sys, hlo_mlc; print('jax' in sys.modules)"
    assert ran("-c", line, folder=tmp_path).stdout == "False\n"


# --- libraries, where they are installed ---------------------------------------------------------


def train(step: Callable, *state: Any) -> list[float]:
    losses = []
    for _ in range(3):
        *state, loss = step(*state)
        losses.append(float(loss))
    return losses


def same_with_and_without(train_once: Callable[[], list[float]], compiled: list[str]) -> None:
    expected = train_once()
    assert not compiled
    with hlo_mlc.enabled(choose="ours"):
        actual = train_once()
    assert compiled
    np.testing.assert_allclose(actual, expected, rtol=1e-4)


INPUTS = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
TARGETS = INPUTS.sum(1, keepdims=True)


def test_flax_and_optax(compiled: list[str]) -> None:
    linen, optax = pytest.importorskip("flax.linen"), pytest.importorskip("optax")
    model = linen.Sequential([linen.Dense(16), linen.relu, linen.Dense(1)])
    optimizer = optax.adam(1e-2)

    def run() -> list[float]:
        @jax.jit
        def step(parameters: Any, state: Any) -> tuple[Any, Any, jax.Array]:
            loss, gradient = jax.value_and_grad(
                lambda p: jnp.mean((model.apply(p, INPUTS) - TARGETS) ** 2)
            )(parameters)
            updates, state = optimizer.update(gradient, state, parameters)
            return optax.apply_updates(parameters, updates), state, loss

        parameters = model.init(jax.random.key(0), INPUTS)
        return train(step, parameters, optimizer.init(parameters))

    same_with_and_without(run, compiled)


def test_flax_nnx(compiled: list[str]) -> None:
    nnx = pytest.importorskip("flax.nnx")

    def run() -> list[float]:
        model = nnx.Linear(8, 1, rngs=nnx.Rngs(0))

        @nnx.jit
        def step(model: Any) -> jax.Array:
            loss, gradient = nnx.value_and_grad(lambda m: jnp.mean((m(INPUTS) - TARGETS) ** 2))(
                model
            )
            changed = jax.tree.map(lambda p, g: p - 0.05 * g, nnx.state(model, nnx.Param), gradient)
            nnx.update(model, changed)
            return loss

        return train(lambda: [step(model)])

    same_with_and_without(run, compiled)


def test_equinox(compiled: list[str]) -> None:
    equinox = pytest.importorskip("equinox")

    def run() -> list[float]:
        @equinox.filter_jit
        def step(model: Any) -> tuple[Any, jax.Array]:
            loss, gradient = equinox.filter_value_and_grad(
                lambda m: jnp.mean((jax.vmap(m)(INPUTS) - TARGETS) ** 2)
            )(model)
            return equinox.apply_updates(model, jax.tree.map(lambda g: -0.01 * g, gradient)), loss

        return train(step, equinox.nn.MLP(8, 1, 16, 1, key=jax.random.key(0)))

    same_with_and_without(run, compiled)


def test_numpyro(compiled: list[str]) -> None:
    numpyro = pytest.importorskip("numpyro")
    distributions = pytest.importorskip("numpyro.distributions")
    infer, guides = numpyro.infer, pytest.importorskip("numpyro.infer.autoguide")

    def model() -> None:
        w = numpyro.sample("w", distributions.Normal(jnp.zeros(8), 1.0).to_event(1))
        numpyro.sample("y", distributions.Normal(INPUTS @ w, 0.1), obs=TARGETS[:, 0])

    def run() -> list[float]:
        svi = infer.SVI(
            model, guides.AutoNormal(model), numpyro.optim.Adam(1e-2), infer.Trace_ELBO()
        )
        return train(jax.jit(svi.update), svi.init(jax.random.key(0)))

    same_with_and_without(run, compiled)
