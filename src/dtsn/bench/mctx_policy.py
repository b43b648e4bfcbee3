"""The yardstick of acting: Gumbel MuZero by mctx, with perceptrons of the same sizes, compiled by JAX.

mctx evaluates one child a simulation where ours evaluates A an expansion, so A·T simulations are as many
model evaluations as T expansions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dtsn.bench.search import Case


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and the threads it starts, on one core: JAX has no setting for one thread."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def mctx_policy(case: Case, simulations: int) -> Callable[[], object]:
    """Return a decision for ``case.batch`` observations, compiled; ImportError without jax and mctx.

    Priors are uniform, at no cost: ours has no policy head either.
    """
    # Read when JAX starts, so before it is imported.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    import mctx
    from jax import numpy as jnp

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # no hand-over to another thread
    size, actions = case.latent, case.actions
    rng = np.random.default_rng(0)

    def layer(inputs: int, outputs: int) -> tuple[Any, Any]:
        weight = rng.normal(0, inputs**-0.5, (inputs, outputs)).astype(np.float32)
        return jnp.asarray(weight), jnp.zeros(outputs)

    def perceptron(inputs: int, outputs: int) -> tuple[Any, Any]:
        return layer(inputs, size), layer(size, outputs)

    modules = {
        "encoder": perceptron(size, size),
        "transition": perceptron(size + actions, size),
        "reward": perceptron(size + actions, 1),
        "value": perceptron(size, 1),
    }

    def apply(module: Any, x: Any) -> Any:
        (first, first_bias), (last, last_bias) = module
        return jax.nn.relu(x @ first + first_bias) @ last + last_bias

    def priors(latent: Any) -> Any:
        return jnp.zeros((latent.shape[0], actions))

    def step(modules: Any, key: Any, action: Any, latent: Any) -> Any:
        inputs = jnp.concatenate([jnp.tanh(latent), jax.nn.one_hot(action, actions)], -1)
        latent = latent + apply(modules["transition"], inputs)
        reward = apply(modules["reward"], inputs)[:, 0]
        value = apply(modules["value"], jnp.tanh(latent))[:, 0]
        output = mctx.RecurrentFnOutput(
            reward=reward, discount=jnp.ones_like(reward), prior_logits=priors(latent), value=value
        )
        return output, latent

    def decide(modules: Any, key: Any, observation: Any) -> Any:
        latent = apply(modules["encoder"], observation)
        value = apply(modules["value"], jnp.tanh(latent))[:, 0]
        root = mctx.RootFnOutput(prior_logits=priors(latent), value=value, embedding=latent)
        return mctx.gumbel_muzero_policy(
            modules, key, root, step, num_simulations=simulations, max_num_considered_actions=actions
        ).action

    compiled = jax.jit(decide)
    observation = rng.random((case.batch, size), np.float32)
    key = jax.random.PRNGKey(0)
    return lambda: np.asarray(compiled(modules, key, observation))
