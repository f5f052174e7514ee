"""Programs of other people's libraries, unchanged, under `hlo_mlc.enabled()`: as without us.

Each program takes what a step returns into the next, 20 times.  Extra `ecosystem` has the
libraries; without one of them, its test is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_mlc
from hlo_mlc.interop.function import Ledger
from hlo_mlc.report import Report

STEPS = 20
Program = Callable[[], Iterable[Any]]
"""Yields what is compared, a pytree for each step."""


def data(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


X, Y = data(64, 16), data(64, 4, seed=1)


def squared_error(predicted: jax.Array) -> jax.Array:
    return jnp.mean((predicted - Y) ** 2)


def flax_linen() -> Iterable[Any]:
    nn, optax = pytest.importorskip("flax.linen"), pytest.importorskip("optax")

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            x = nn.LayerNorm()(nn.gelu(nn.Dense(48)(x)))
            x = nn.Dropout(0.1, deterministic=not train)(x)
            x = nn.MultiHeadDotProductAttention(num_heads=2)(x[:, None].reshape(4, 16, 48))
            return nn.Dense(4)(x.reshape(64, 48))

    network, optimizer = Network(), optax.adamw(1e-2)
    parameters = network.init(jax.random.key(0), X, train=False)
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, key: jax.Array) -> tuple[Any, Any, jax.Array]:
        def loss(parameters: Any) -> jax.Array:
            return squared_error(network.apply(parameters, X, train=True, rngs={"dropout": key}))

        value, gradient = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    for number in range(STEPS):
        parameters, state, value = step(parameters, state, jax.random.key(number))
        yield value


def flax_nnx() -> Iterable[Any]:
    nnx, optax = pytest.importorskip("flax.nnx"), pytest.importorskip("optax")

    class Network(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.conv = nnx.Conv(1, 6, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(6, rngs=rngs)
            self.out = nnx.Linear(96, 4, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = nnx.relu(self.norm(self.conv(x.reshape(64, 4, 4, 1))))
            return self.out(x.reshape(64, 96))

    network = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(network, optax.sgd(0.05, momentum=0.9), wrt=nnx.Param)

    @nnx.jit
    def step(network: Any, optimizer: Any) -> jax.Array:
        value, gradient = nnx.value_and_grad(lambda network: squared_error(network(X)))(network)
        optimizer.update(network, gradient)
        return value

    for _ in range(STEPS):
        yield step(network, optimizer)
    yield network.norm.mean[...], network.norm.var[...]


def equinox() -> Iterable[Any]:
    eqx, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")
    network = eqx.nn.MLP(16, 4, 32, 2, activation=jnp.tanh, key=jax.random.key(0))
    optimizer = optax.adam(3e-3)
    state = optimizer.init(eqx.filter(network, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(network: Any, state: Any) -> tuple[Any, Any, jax.Array]:
        value, gradient = eqx.filter_value_and_grad(
            lambda network: squared_error(jax.vmap(network)(X))
        )(network)
        updates, state = optimizer.update(gradient, state)
        return eqx.apply_updates(network, updates), state, value

    for _ in range(STEPS):
        network, state, value = step(network, state)
        yield value


def haiku() -> Iterable[Any]:
    hk, optax = pytest.importorskip("haiku"), pytest.importorskip("optax")

    def forward(x: jax.Array) -> jax.Array:
        core = hk.LSTM(24)
        rows = x.reshape(4, 16, 16)
        outputs, _ = hk.dynamic_unroll(core, rows, core.initial_state(16))
        return hk.Linear(4)(outputs.reshape(64, 24))

    network = hk.without_apply_rng(hk.transform(forward))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(1e-2))
    parameters = network.init(jax.random.key(0), X)
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any) -> tuple[Any, Any, jax.Array]:
        value, gradient = jax.value_and_grad(lambda p: squared_error(network.apply(p, X)))(
            parameters
        )
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(parameters, updates), state, value

    for _ in range(STEPS):
        parameters, state, value = step(parameters, state)
        yield value


def optax_lbfgs() -> Iterable[Any]:
    optax = pytest.importorskip("optax")
    solver = optax.lbfgs(memory_size=4)

    def loss(weights: jax.Array) -> jax.Array:
        margins = (X @ weights) * jnp.sign(Y[:, 0])
        return jnp.mean(jax.nn.softplus(-margins)) + 0.1 * weights @ weights

    @jax.jit
    def step(weights: jax.Array, state: Any) -> tuple[jax.Array, Any, jax.Array]:
        value, gradient = optax.value_and_grad_from_state(loss)(weights, state=state)
        updates, state = solver.update(
            gradient, state, weights, value=value, grad=gradient, value_fn=loss
        )
        return optax.apply_updates(weights, updates), state, value

    weights = data(16, seed=2)
    state = solver.init(weights)
    for _ in range(STEPS):
        weights, state, value = step(weights, state)
        yield value


def numpyro() -> Iterable[Any]:
    pytest.importorskip("numpyro")
    from numpyro import distributions, infer, optim, sample

    def model(x: jax.Array, y: jax.Array) -> None:
        weights = sample("weights", distributions.Normal(jnp.zeros(16), 1.0).to_event(1))
        scale = sample("scale", distributions.HalfNormal(1.0))
        sample("y", distributions.Normal(x @ weights, scale), obs=y)

    guide = infer.autoguide.AutoNormal(model)
    svi = infer.SVI(model, guide, optim.Adam(0.01), infer.Trace_ELBO())
    state = svi.init(jax.random.key(0), X, Y[:, 0])
    update = jax.jit(svi.update)
    for _ in range(STEPS):
        state, value = update(state, X, Y[:, 0])
        yield value
    # A sampler goes another way after the first difference in a last bit: a few steps only.
    sampler = infer.MCMC(
        infer.NUTS(model, max_tree_depth=3), num_warmup=2, num_samples=2, progress_bar=False
    )
    sampler.run(jax.random.key(1), X, Y[:, 0])
    yield jax.tree.map(jnp.shape, sampler.get_samples())


def diffrax() -> Iterable[Any]:
    dfx = pytest.importorskip("diffrax")

    def solve(scale: jax.Array) -> jax.Array:
        term = dfx.ODETerm(
            lambda t, y, args: jnp.stack([args * y[0] * (1 - y[1]), y[1] * (y[0] - 1)])
        )
        found = dfx.diffeqsolve(
            term,
            dfx.Tsit5(),
            0.0,
            5.0,
            0.05,
            jnp.array([1.2, 0.8]),
            args=scale,
            saveat=dfx.SaveAt(ts=jnp.linspace(0, 5, 11)),
            stepsize_controller=dfx.PIDController(rtol=1e-4, atol=1e-5),
        )
        return found.ys

    @jax.jit
    def step(scale: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def loss(scale: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = solve(scale)
            return jnp.mean((found - wanted) ** 2), found

        (value, found), gradient = jax.value_and_grad(loss, has_aux=True)(scale)
        return scale - 0.05 * gradient, value, found

    wanted, scale = jax.jit(solve)(jnp.float32(0.8)), jnp.float32(0.5)
    for _ in range(STEPS):
        scale, value, found = step(scale)
        yield scale, value, found


def brax() -> Iterable[Any]:
    envs = pytest.importorskip("brax.envs")
    environment = envs.create("inverted_pendulum", backend="spring", auto_reset=False)
    step = jax.jit(environment.step)
    state = jax.jit(environment.reset)(jax.random.key(0))
    for number in range(STEPS):
        state = step(state, jnp.sin(jnp.array([0.3 * number])))
        yield state.obs, state.reward


@pytest.mark.parametrize("choose", ["auto", "ours"])
@pytest.mark.parametrize(
    "program",
    [flax_linen, flax_nnx, equinox, haiku, optax_lbfgs, numpyro, diffrax, brax],
    ids=lambda program: program.__name__,
)
def test_libraries_run_as_without_us(
    program: Program, choose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(program())
    jax.clear_caches()
    reports: list[Report] = []
    record = Ledger.record

    def noted(self: Ledger, module: Any, report: Report) -> None:
        reports.append(report)
        record(self, module, report)

    monkeypatch.setattr(Ledger, "record", noted)
    with hlo_mlc.enabled(choose=choose):
        found = list(program())
    assert len(found) == len(expected)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        jax.tree.map(
            lambda a, b, step=step: np.testing.assert_allclose(
                a, b, rtol=2e-3, atol=2e-4, err_msg=f"step {step}"
            ),
            ours,
            theirs,
        )
    assert reports
    if choose == "ours":
        largest = max(reports, key=lambda report: len(report.kernels))
        assert largest.kernels and largest.coverage > 0.9
