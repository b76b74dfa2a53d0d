"""First clusters by loss: each client trains K random models and joins the best one."""

from typing import Any

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.first_clusters import FirstClusters
from fesem_jax.algorithms.common.random_centers import random_models
from fesem_jax.core import prng_streams, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort
from fesem_jax.training import privacy, sent_models
from fesem_jax.training.client_losses import personal_losses
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction, Trained, sent_at_last


def train_and_choose(
  local: LocalTraining,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  num_clusters: int,
  weighting: str,
) -> FirstClusters:
  """Every client trains K random models and keeps the best (FedRC's code of FeSEM).

  w_ik <- SGD from c_k on F_i / K        for all k, where c_k are random models
  r_i  <- argmin_k F_i(w_ik)
  c_k  <- mean of w_ik over the clients with r_i = k
  """
  draw_key = prng_streams.fold(key, prng_streams.DRAWS)
  models = random_models(local, draw_key, num_clusters)
  train_key = prng_streams.fold(key, prng_streams.LOCAL)
  shape = cohort.ids.shape[0], data.max_examples
  factors = jnp.full(shape, 1 / num_clusters)

  changed = sent_models.are_changed(data, local.sends)

  def train(model: Any) -> Trained:
    starts = ClientModels(tree.expand(model))
    # What a client sends comes of the one that it has chosen.
    once = Reduction(noised=True, sent='nothing' if changed else 'shared')
    return train_cohort(local, starts, data, cohort, train_key, once, factors=factors)

  def better(best: Any, numbered: Any) -> tuple[Any, None]:
    number, model = numbered
    trained = train(model)
    loss = personal_losses(local, trained.params, data, cohort)
    loss = jnp.where(trained.finite, loss, jnp.inf)
    # The first one is kept where no model trains, so that nothing is left undefined.
    keep = (loss < best[0]) | (number == 0)
    return tree.where(keep, (loss, jnp.full_like(best[1], number), trained), best), None

  like = jax.eval_shape(train, tree.unstack(models, 0))
  nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
  first = jnp.zeros(cohort.ids.shape, jnp.int32)
  numbers = jnp.arange(num_clusters, dtype=jnp.int32)
  none = jnp.full(first.shape, jnp.inf), first, nothing
  (_, cluster, trained), _ = jax.lax.scan(better, none, (numbers, models))
  starts = ClientModels(models, cluster)
  trained = sent_at_last(local, starts, trained, data, cohort, train_key)
  centers = privacy.means(
    local, key, trained, trained.params, cluster, weighting, models
  )
  return FirstClusters(cluster, None, centers, trained, trained.params, None)
