"""Differential privacy of clients: changes clipped to a norm, and Gaussian noise."""

import importlib.util
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from fesem_jax.core import parameter_names, prng_streams, sums, tree
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sending import Privacy, Sends
from fesem_jax.core.types import Params
from fesem_jax.training.trained import Trained
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import NotNegative, Positive, Share, checked

Where = Literal['client', 'server']
WHERE: tuple[str, ...] = get_args(Where)


@checked
def differential_privacy(
  clip: Positive,
  noise_multiplier: NotNegative,
  *,
  where: Where = 'server',
  delta: Share = 1e-5,
) -> Sends:
  """Builds differential privacy of what clients send (`local_training(sends=...)`).

  McMahan et al., "Learning Differentially Private Recurrent Language Models", 2018.
  With z the noise multiplier, C the clip, and d_i the change of client i's model from
  the one that it received (`server`: from its center),

    'client'  d_i <- d_i min(1, C / |d_i|) + N(0, z^2 C^2 I)
    'server'  sum_i d_i of each center <- sum_i d_i min(1, C / |d_i|) + N(0, z^2 C^2 I)

  The mean of S clients has noise of standard deviation z C / sqrt(S) with 'client', and
  z C / S with 'server', which needs `weighting='uniform'`.

  Args:
    clip: C, the L2 norm to which a client's change of the model is clipped.
    noise_multiplier: z, the deviation of the noise in units of the clip; 0 only clips.
    where: who adds Gaussian noise, each 'client' to its change of the model, or the
      'server' to the sum of each center's changes; then it sees the models.
    delta: delta of (epsilon, delta); 0 computes no epsilon, which needs the
      package dp-accounting.
  """
  installed = importlib.util.find_spec('dp_accounting') is not None
  check(
    installed or not delta, "delta: needs dp-accounting: pip install 'fesem_jax[dp]'"
  )

  def noisy(key: jax.Array, start: Params, trained: Params) -> Params:
    change = jax.tree.map(jnp.subtract, trained, start)
    square = tree.row_distances(tree.expand(trained), tree.expand(start))[0]
    factor = sums.clipping_factor(jnp.sqrt(square), variable(clip))
    if not noise_multiplier:
      return jax.tree.map(lambda s, d: s + factor * d, start, change)
    std = variable(noise_multiplier) * variable(clip)
    noise = tree.normal_like(key, change)
    return jax.tree.map(lambda s, d, n: s + factor * d + std * n, start, change, noise)

  privacy = Privacy(clip, noise_multiplier, delta, where)
  return Sends(noisy if where == 'client' else None, None, privacy, 'dp')


def noised(
  privacy: Privacy, key: jax.Array, total: Any, unsent: Sequence[str] = ()
) -> Any:
  """The `ClusterSums` in a tree with the server's noise; none on the paths `unsent`."""
  key = prng_streams.fold(key, prng_streams.SERVER_NOISE)
  std = variable(privacy.noise_multiplier) * variable(privacy.clip)
  leaves, structure = jax.tree.flatten(total, is_leaf=is_sums)

  def with_noise(number: int, leaf: Any) -> Any:
    if not is_sums(leaf):
      return leaf
    noise = tree.normal_like(jax.random.fold_in(key, number), leaf.params)

    def plus(x: jax.Array, n: jax.Array) -> jax.Array:
      # A center that no client counts for stays where it is.
      used = (leaf.weight > 0).reshape((-1,) + (1,) * (x.ndim - 1))
      return x + jnp.where(used, std * n, 0.0)

    params = jax.tree.map(plus, leaf.params, noise)
    if unsent:
      unchanged = flatten_dict(leaf.params, sep='/')
      unchanged = {path: unchanged[path] for path in unsent if path in unchanged}
      params = parameter_names.replaced(params, unchanged)
    return leaf._replace(params=params)

  noisy = [with_noise(i, leaf) for i, leaf in enumerate(leaves)]
  return jax.tree.unflatten(structure, noisy)


def is_sums(x: Any) -> bool:
  return isinstance(x, sums.ClusterSums)


def means(
  local: LocalTraining,
  key: jax.Array,
  trained: Trained,
  models: Params,
  assignment: jax.Array,
  weighting: str,
  origins: Params,
) -> Params:
  """[K, ...] means of models [S, ...] by clusters, with the server's noise if any.

  For a start, whose models are kept; `origins` [K, ...] must not depend on the data.
  """
  privacy = None if local.sends is None else local.sends.server
  if privacy is None:
    weights = trained.weights(weighting)
    return sums.weighted_mean(models, assignment, weights, origins, local.mesh)
  with sums.clipped(variable(privacy.clip)):
    weights = trained.weights(weighting)
    total = sums.cluster_sums(models, assignment, weights, origins, local.mesh)
  return sums.mean_of(noised(privacy, key, total, local.unsent), origins)


def check_noised(local: LocalTraining, total: Any, keeps_models: bool) -> None:
  """Raises `UserError` if models would escape the server's noise."""
  if local.sends is None or local.sends.server is None:
    return
  summed = any(map(is_sums, jax.tree.leaves(total, is_leaf=is_sums)))
  reached = summed or not keeps_models
  check(reached, 'dp: server adds noise to sums, not to single models; use client')
