"""`mlc_jit` as a decorator: its forms, its options, its reports."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pickle
import pydoc
import textwrap
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.frontend.emit import KERNEL_TARGET
from hlo_mlc.report import Report
from hlo_mlc.support.errors import ConfigurationError, UnknownTargetError, UsageError

X = jnp.arange(4.0)


def test_takes_all_that_jax_jit_takes() -> None:
    theirs = inspect.signature(jax.jit).parameters
    ours = inspect.signature(mlc_jit).parameters
    assert set(ours) - set(theirs) == {
        "choose",
        "target",
        "deterministic",
        "records",
        "tune",
        "any_rows",
    }
    assert not set(theirs) - set(ours)
    assert all(ours[name].kind == theirs[name].kind for name in theirs)
    assert all(ours[name].default == theirs[name].default for name in theirs)


def test_decorator_forms() -> None:
    @mlc_jit
    def bare(x: jax.Array) -> jax.Array:
        return x + 1

    @mlc_jit(choose="ours", static_argnums=1)
    def called(x: jax.Array, n: int) -> jax.Array:
        return x + n

    assert jnp.array_equal(bare(X), X + 1)
    assert jnp.array_equal(called(X, 1), X + 1)
    assert jnp.array_equal(mlc_jit(lambda x: x + 1)(X), X + 1)


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, replacing: Any) -> None:
    monkeypatch.setenv("HLO_MLC_CHOOSE", "xla")
    mlc_jit(lambda x: x + 1)(X)
    assert not replacing.modules
    mlc_jit(lambda x: x + 1, choose="ours")(X)
    assert replacing.modules


def test_unknown_options_are_refused_when_decorating(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"choose='our'.*did you mean 'ours'"):
        mlc_jit(choose="our")
    with pytest.raises(UnknownTargetError, match=r"'tpu'.*cpu"):
        mlc_jit(target="tpu")
    with pytest.raises(TypeError, match="Expected a callable value, got 3"):
        mlc_jit(3)
    with pytest.raises(TypeError, match="static_argnum"):
        mlc_jit(static_argnum=1)
    monkeypatch.setenv("HLO_MLC_CHOOSE", "never")
    with pytest.raises(ConfigurationError, match="HLO_MLC_CHOOSE='never'"):
        mlc_jit()


class Model:
    """With what `mlc_jit` decorates in classes."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @functools.partial(mlc_jit, static_argnums=0, choose="ours")
    def apply(self, x: jax.Array, *more: jax.Array) -> jax.Array:
        """Applies it."""
        return sum(more, jnp.tanh(x) * self.factor)

    @classmethod
    @functools.partial(mlc_jit, static_argnums=0, choose="ours")
    def of_class(cls, x: jax.Array) -> jax.Array:
        return jnp.tanh(x)

    @staticmethod
    @mlc_jit(choose="ours")
    def of_none(x: jax.Array) -> jax.Array:
        return jnp.tanh(x)


def test_bound_methods_have_methods() -> None:
    model = Model(2.0)
    expected = jnp.tanh(X) * 2
    assert jnp.allclose(model.apply(X), expected)
    assert model.apply.report().coverage == 1
    assert model.apply.report(X[:2]).coverage == 1
    assert "coverage: 100%" in str(model.apply.explain(X))
    assert model.apply.eval_shape(X) == jax.eval_shape(lambda x: x, X)
    assert jnp.allclose(model.apply.lower(X).compile()(X), expected)
    assert jnp.allclose(model.apply.trace(X).lower().compile()(X), expected)
    assert jnp.allclose(model.apply.choosing("xla")(X), expected)
    assert Model(3.0).apply.choosing("xla").report(X).coverage == 0
    assert jnp.allclose(Model.apply(model, X), expected)
    assert jnp.allclose(model.of_class(X), Model.of_class(X))
    assert Model.of_none.report(X).stage_seconds is model.of_none.report(X).stage_seconds


def test_bound_methods_take_what_those_of_jax_take() -> None:
    # There `lower` and the like are not bound: callers give the object themselves.
    model = Model(2.0)
    assert model.apply.lower(model, X).as_text() == model.apply.lower(X).as_text()

    class Vector:
        def __init__(self, x: jax.Array) -> None:
            self.x = x

        @mlc_jit
        def dot(self, other: Vector) -> jax.Array:
            return self.x @ other.x

    jax.tree_util.register_pytree_node(Vector, lambda v: ((v.x,), None), lambda _, x: Vector(*x))
    vector = Vector(X)
    assert vector.dot.lower(vector).as_text() == vector.dot.lower(vector, vector).as_text()
    assert vector.dot(vector) == X @ X


def test_bound_methods_are_like_methods() -> None:
    model = Model(2.0)
    assert model.apply == model.apply and hash(model.apply) == hash(model.apply)
    assert model.apply != Model(2.0).apply and model.apply != Model.apply
    assert list(inspect.signature(model.apply).parameters) == ["x", "more"]
    assert inspect.signature(Model.apply) == inspect.signature(Model.apply.__wrapped__)
    assert (model.apply.__name__, model.apply.__doc__) == ("apply", "Applies it.")
    assert repr(model.apply) == f"<bound method Model.apply of {model!r}>"
    assert isinstance(model.apply, jax.stages.Wrapped)
    for transformed in (jax.jit(model.apply), jax.vmap(model.apply), mlc_jit(model.apply)):
        assert jnp.allclose(transformed(X), jnp.tanh(X) * 2)

    class Other:
        borrowed = model.apply

    assert jnp.allclose(Other().borrowed(X), jnp.tanh(X) * 2)
    assert copy.deepcopy(model.apply)(X).shape == X.shape


def test_signatures_of_functions_in_others() -> None:
    """Each asks for the next one's, which takes no longer the deeper they are."""
    function = jnp.tanh
    for _ in range(40):
        function = mlc_jit(function)
    assert inspect.signature(function) == inspect.signature(jnp.tanh)
    other = functools.wraps(function)(mlc_jit(lambda x, y: x))
    assert list(inspect.signature(other).parameters) == ["x", "y"]


def plain(x: jax.Array, *, scale: float = 1.0) -> jax.Array:
    """What it does."""
    return x * scale


@pytest.mark.parametrize(
    "look",
    [
        lambda f: isinstance(f, jax.stages.Wrapped),
        lambda f: [hasattr(f, name) for name in ("lower", "trace", "eval_shape", "clear_cache")],
        lambda f: f.__wrapped__ is plain,
        lambda f: inspect.unwrap(f) is plain,
        inspect.signature,
        lambda f: inspect.signature(functools.wraps(f)(lambda *args: f(*args))),
        lambda f: (f.__name__, f.__qualname__, f.__module__, f.__doc__, inspect.getdoc(f)),
        lambda f: (callable(f), inspect.isfunction(f), inspect.ismethod(f)),
        lambda f: "What it does." in pydoc.render_doc(f),
        lambda f: (weakref.ref(f)() is f, f == f, f != jax.jit(plain), {f: 1}[f]),
        lambda f: (f(X), f._cache_size(), f.clear_cache(), f._cache_size())[1:],
        lambda f: jax.tree.map(lambda x: x + 1, jax.tree_util.Partial(f, X))().tolist(),
        lambda f: functools.partial(f, scale=2.0)(X).tolist(),
        lambda f: type(f.lower(X)) is type(jax.jit(plain).lower(X)),
        lambda f: copy.copy(f)(X).tolist() == copy.deepcopy(f)(X).tolist(),
        lambda f: setattr(f, "note", 1) or f.note,
        lambda f: getattr(f, "nothing", "lacks it"),
        repr,
    ],
)
def test_it_looks_like_what_jax_jit_returns(look: Callable) -> None:
    assert look(mlc_jit(plain)) == look(jax.jit(plain))


class Shy:
    def __call__(self, x: jax.Array) -> jax.Array:
        return x * 2

    def __repr__(self) -> str:
        raise ValueError("it does not show itself")


def test_functions_that_fail_to_describe_themselves() -> None:
    for function in (Shy(), functools.partial(Shy()), Shy().__call__):
        ours, theirs = mlc_jit(function), jax.jit(function)
        assert repr(ours) == repr(theirs) and str(ours) == str(theirs)
        assert jnp.array_equal(ours(X), X * 2)
        assert str(ours.explain(X)) and repr(ours.report(X))


def jitted_on_a_device(jit: Callable) -> Callable:
    return jit(plain, device=jax.devices()[0])


def jitted_on_a_backend(jit: Callable) -> Callable:
    return functools.partial(jit, backend="cpu")(plain)


def decorated(jit: Callable) -> Callable:
    return jit(backend="cpu")(plain)


@pytest.mark.parametrize("use", [jitted_on_a_device, jitted_on_a_backend, decorated])
def test_warnings_of_jax_jit_are_about_the_users_line(use: Callable) -> None:
    line = use.__code__.co_firstlineno + 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        # As Python itself: those about the program that runs, each line of it once.
        warnings.filterwarnings("default", category=DeprecationWarning, module=f"{__name__}$")
        for _ in range(2):
            assert jnp.array_equal(use(mlc_jit)(X), X)
    assert [(w.filename, w.lineno, w.category) for w in caught] == [
        (__file__, line, DeprecationWarning)
    ]
    with warnings.catch_warnings(), pytest.raises(DeprecationWarning, match="backend and device"):
        warnings.simplefilter("error")
        use(mlc_jit)


def test_errors_come_after_the_warning() -> None:
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="both a device and"):
        mlc_jit(plain, device=jax.devices()[0], backend="cpu")


def test_attributes_of_the_function_do_not_hide_ours() -> None:
    def function(x: jax.Array) -> jax.Array:
        return x

    function.report, function.note = "theirs", "kept"
    jitted = mlc_jit(function)
    assert jitted.note == "kept"
    assert isinstance(jitted.report(X), Report)


def test_pickles() -> None:
    again = pickle.loads(pickle.dumps(mlc_jit(plain, choose="ours")))
    assert again.choose == "ours" and jnp.array_equal(again(X), X)
    for jit in (jax.jit, mlc_jit):
        with pytest.raises((pickle.PicklingError, AttributeError), match="<lambda>"):
            pickle.dumps(jit(lambda x: x))


def test_pickles_by_name_what_a_module_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decorated functions and methods, which processes of a pool find as they find others."""
    (tmp_path / "decorated_functions.py").write_text(
        textwrap.dedent("""
        from hlo_mlc import mlc_jit

        @mlc_jit(choose="ours")
        def function(x):
            return x * 2

        class Model:
            @mlc_jit(static_argnums=0)
            def apply(self, x):
                return x * 3
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("decorated_functions")
    assert pickle.loads(pickle.dumps(module.function)) is module.function
    assert pickle.loads(pickle.dumps(module.Model.apply)) is module.Model.apply
    method = pickle.loads(pickle.dumps(module.Model().apply))
    assert isinstance(method.args[0], module.Model)
    assert jnp.array_equal(method(X), X * 3)


def test_messages_of_jax_name_the_function() -> None:
    with pytest.raises(TypeError, match=r"argument to <function plain at 0x\w+> as an abstract"):
        mlc_jit(plain)("text")


def test_errors_are_those_of_jax_jit() -> None:
    def generator(x: jax.Array) -> Iterator[jax.Array]:
        yield x

    for wrong, options in (
        (3, {}),
        (generator, {}),
        (plain, {"static_argnums": 7}),
        (plain, {"donate_argnames": "y"}),
        (None, {}),
    ):
        with pytest.raises((TypeError, ValueError)) as theirs:
            jax.jit(wrong, **options)
        with pytest.raises(theirs.type) as ours:
            mlc_jit(wrong, **options)
        assert str(ours.value).partition(" at 0x")[0] == str(theirs.value).partition(" at 0x")[0]


def test_jax_export_gets_a_program_that_xla_runs_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLO_MLC_DEBUG", "1")
    for choose in ("auto", "ours", "measure"):
        function = mlc_jit(lambda x: jnp.tanh(x) * 2, choose=choose)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exported = jax.export.export(function)(X)
        assert KERNEL_TARGET not in exported.mlir_module()
        assert any("hlo_mlc.export" in reason for reason in function.report().reasons)
        assert "hlo_mlc.export writes files" in capsys.readouterr().err
        again = jax.export.deserialize(exported.serialize(vjp_order=1))
        assert jnp.allclose(again.call(X), jnp.tanh(X) * 2)
        (derivative,) = jax.vjp(again.call, X)[1](jnp.ones_like(X))
        assert jnp.allclose(derivative, 2 - 2 * jnp.tanh(X) ** 2)
    assert KERNEL_TARGET in mlc_jit(lambda x: jnp.tanh(x) * 2, choose="ours").lower(X).as_text()


def test_report_of_arguments(replacing: Any) -> None:
    g = mlc_jit(lambda x, n: x + n, choose="ours", static_argnums=1)
    assert g.report(X, 1).reasons == ("it was copied",)
    g(X, 1)
    g.report(X, 1)
    assert len(replacing.modules) == 1
    assert "it was copied" in str(g.explain(X, 2))
    assert len(replacing.modules) == 2


def test_report_after_a_call_compiles_nothing_again(replacing: Any) -> None:
    g = mlc_jit(lambda x: x + 1, choose="ours")
    g(X)
    g(X[:2])
    latest = g.report()
    assert g.report(X[:2]).stage_seconds is latest.stage_seconds
    assert g.report(X).stage_seconds is not latest.stage_seconds
    assert len(replacing.modules) == 2


def test_report_of_what_computes_nothing() -> None:
    g = mlc_jit(lambda x: ())
    assert g.report(X).coverage == 0
    assert "computes nothing" in str(g.explain(X))


def test_report_without_arguments_needs_a_compilation() -> None:
    with pytest.raises(UsageError, match="call it, or give the report the arguments"):
        mlc_jit(lambda x: x).report()


class Tables:
    @functools.partial(mlc_jit, choose="ours", static_argnums=0)
    def waves(self) -> jax.Array:
        return jnp.sin(jnp.arange(9.0))


@pytest.mark.parametrize("is_bound", [True, False])
def test_report_of_a_function_without_parameters(is_bound: bool) -> None:
    waves = Tables().waves if is_bound else mlc_jit(lambda: jnp.sin(jnp.arange(9.0)), choose="ours")
    assert waves.report().coverage == 1
    assert "sine" in str(waves.explain())


def test_choosing_xla_says_so() -> None:
    assert 'choose="xla"' in str(mlc_jit(lambda x: x + 1, choose="xla").explain(X))
