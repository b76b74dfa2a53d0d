"""FeSEM's penalty (Eq. 7), and its E-step (Eq. 8) on a chunk of clients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.types import Cohort, Params
from fesem_jax.server.comparison import ModelComparison
from fesem_jax.training.trained import Trained


def penalty(
  prox_lambda: float, weighting: str, data: FederatedData, cohort: Cohort
) -> jax.Array | float | None:
  """[] or [S] float32 factor of |W - W~(r_i)|^2 in each client's loss; None if 0.

  'paper' divides Eq. 7, alpha_i F_i + (lambda / m) |W - W~(r_i)|^2, by alpha_i.
  """
  if prox_lambda == 0:
    return None
  factor = variable(prox_lambda)
  if weighting == 'uniform':
    return factor
  sizes = data.sizes().astype(jnp.float32)  # 1 / (m alpha_i) = mean n / n_i
  mean_size = sizes.sum() / (sizes > 0).sum()
  return factor * mean_size / jnp.maximum(data.sizes(cohort.ids), 1)


class Assigned(NamedTuple):
  cluster: jax.Array  # [C] int32 new cluster of each client
  # [C] float32 squared distance of all parameters to that cluster's old center
  distance: jax.Array
  models: Params  # [C, ...] as they are averaged


def assign(
  comparison: ModelComparison,
  chunk: Trained,
  starts: ClientModels,
  prepared: Any,
  keep: jax.Array | None,
) -> Assigned:
  """The E-step (Eq. 8): each client goes to the center nearest to its model.

  `prepared` are the centers of `ModelComparison.prepare`. Clients stay in the
  clusters that they start from where they do not count, or `keep` [] bool holds.
  """
  centers, start, align = starts.shared, starts.choice, comparison.align
  assert start is not None
  nearest, distance, models = comparison.nearest(chunk.params, prepared)
  moves = chunk.took_part() if keep is None else chunk.took_part() & ~keep
  cluster = jnp.where(moves, nearest, start)
  if align is not None and keep is not None:  # Units in the order of the old center.
    models = jax.lax.cond(
      keep, lambda: align(chunk.params, tree.take(centers, start), None), lambda: models
    )
  if comparison.partial or keep is not None:  # Eq. 6 is about all parameters.
    distance = tree.row_distances(models, tree.take(centers, cluster))
  return Assigned(cluster, distance, models)
