"""Server optimizers: steps along the mean change of the clients' models.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021 (FedOpt): the mean change of
the clients' models, Delta, stands for the negative gradient. Any Optax optimizer
serves; those of the paper are here where Optax's differ from them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from fesem_jax.core import parameter_names, prng_streams, sums, tree
from fesem_jax.core.hyperparameters import optimizer, variable
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Positive, Share, checked

# None takes the mean of the clients itself.
ServerOptimizer: TypeAlias = optax.GradientTransformation | None


def mask_batch_stats(
  optimizer: ServerOptimizer, statistics: Sequence[str]
) -> ServerOptimizer:
  """The optimizer, where a model's statistics of batches take their mean as it is."""
  if optimizer is None or not statistics:
    return optimizer
  inner = optimizer

  def init(params):
    return inner.init(parameter_names.zeroed(params, statistics))

  def update(gradient, state, params=None):
    means = parameter_names.split(gradient, statistics)[1]
    zeros = parameter_names.zeroed(gradient, statistics)
    point = None if params is None else parameter_names.zeroed(params, statistics)
    updates, state = inner.update(zeros, state, point)
    updates = parameter_names.split(updates, statistics)[0]
    return tree.merge(updates, jax.tree.map(jnp.negative, means)), state

  return optax.GradientTransformation(init, update)


def init(
  optimizer: ServerOptimizer, centers: Params, key: jax.Array | None = None
) -> Any:
  """The optimizer's state for each of the centers [K, ...], with keys of `key`."""
  if optimizer is None:
    return ()
  is_optimizer = hasattr(optimizer, 'update')
  check(is_optimizer, 'server_optimizer: is none; use e.g. fj.server_optimizers.adam()')
  state = jax.vmap(optimizer.init)(centers)
  return state if key is None else prng_streams.with_keys(state, key)


def renew(
  optimizer: ServerOptimizer, state: Any, unchanged: jax.Array, centers: Params
) -> Any:
  """The state, begun anew for centers that changed [K] bool; random keys go on."""

  def reset(old: jax.Array, new: jax.Array) -> jax.Array:
    return old if prng_streams.is_key(old) else tree.where(unchanged, old, new)

  return jax.tree.map(reset, state, init(optimizer, centers))


def step(
  optimizer: ServerOptimizer, state: Any, centers: Params, clients: sums.ClusterSums
) -> tuple[Params, Any]:
  """Centers [K, ...] after a step toward the mean of their clients, and the state."""
  means = sums.mean_of(clients, centers)
  return move(optimizer, state, centers, means, clients.weight > 0)


def move(
  optimizer: ServerOptimizer,
  state: Any,
  centers: Params,
  means: Params,
  has_clients: jax.Array,
) -> tuple[Params, Any]:
  """Centers [K, ...] after a step toward `means` [K, ...], and the state.

  A center without clients [K] bool stays where it is, and its state too.
  """
  if optimizer is None:
    return means, state
  pseudo_gradient = jax.tree.map(jnp.subtract, centers, means)
  updates, new_state = jax.vmap(optimizer.update)(pseudo_gradient, state, centers)
  new = optax.apply_updates(centers, updates), new_state
  return tree.where(has_clients, new, (centers, state))


class AdaptiveState(NamedTuple):
  """State of an adaptive server optimizer."""

  m: Params  # [...] mean of Delta
  v: Params  # [...] of Delta^2


def _adaptive(
  second_moment: Callable[[jax.Array, jax.Array], jax.Array],
  learning_rate: float,
  beta1: float,
  tau: float,
) -> optax.GradientTransformation:
  """Algorithm 2 of Reddi et al., with v from tau^2 on and no correction of the start.

  m <- beta1 m + (1 - beta1) Delta
  v <- second_moment(v, Delta^2)
  x <- x + learning_rate m / (sqrt(v) + tau)
  """

  def init(params):
    first = variable(tau**2)
    v = jax.tree.map(lambda x: jnp.full_like(x, first), params)
    return AdaptiveState(tree.zeros_like(params), v)

  def update(gradient, state, params=None):
    old, new = variable(beta1), variable(1 - beta1)
    rate, floor = variable(learning_rate), variable(tau)
    m = jax.tree.map(lambda m, g: old * m - new * g, state.m, gradient)
    v = jax.tree.map(lambda v, g: second_moment(v, jnp.square(g)), state.v, gradient)

    def change(m, v):
      return rate * m / (jnp.sqrt(v) + floor)

    return jax.tree.map(change, m, v), AdaptiveState(m, v)

  return optax.GradientTransformation(init, update)


@checked
def momentum(
  learning_rate: Positive = 1.0, beta1: Share = 0.9
) -> optax.GradientTransformation:
  """FedAvgM: m <- beta1 m + Delta; x <- x + learning_rate m."""
  return optimizer(optax.sgd, learning_rate, momentum=beta1)


@checked
def adagrad(
  learning_rate: Positive = 0.1, beta1: Share = 0.0, tau: Positive = 1e-3
) -> optax.GradientTransformation:
  """FedAdagrad: v <- v + Delta^2, without momentum by default; see `_adaptive`."""
  return _adaptive(jnp.add, learning_rate, beta1, tau)


@checked
def adam(
  learning_rate: Positive = 0.1,
  beta1: Share = 0.9,
  beta2: Share = 0.99,
  tau: Positive = 1e-3,
) -> optax.GradientTransformation:
  """FedAdam: v <- beta2 v + (1 - beta2) Delta^2; see `_adaptive`."""

  def second_moment(v, square):
    return variable(beta2) * v + variable(1 - beta2) * square

  return _adaptive(second_moment, learning_rate, beta1, tau)


@checked
def yogi(
  learning_rate: Positive = 0.1,
  beta1: Share = 0.9,
  beta2: Share = 0.99,
  tau: Positive = 1e-3,
) -> optax.GradientTransformation:
  """FedYogi: v <- v - (1 - beta2) Delta^2 sign(v - Delta^2); see `_adaptive`."""

  def second_moment(v, square):
    return v - variable(1 - beta2) * square * jnp.sign(v - square)

  return _adaptive(second_moment, learning_rate, beta1, tau)
