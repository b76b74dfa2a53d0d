"""FedDANE: federated Newton-type optimization by corrected gradients.

Li et al., "FedDANE: A Federated Newton-Type Method", Asilomar 2019.
"""

import jax
import jax.numpy as jnp

from fesem_jax import em, tree
from fesem_jax.algorithms import global_model
from fesem_jax.algorithms.global_model import GlobalState
from fesem_jax.base import Algorithm, Cohort, check_at_least
from fesem_jax.local import DROPOUT, LocalTraining, cohort_gradients, coin

_FIRST_COHORT = 2**31 - 4  # Folded into the round's key.


def fed_dane(
  local: LocalTraining, *, prox_mu: float = 0.1, same_cohort: bool = False
) -> Algorithm:
  """Builds FedDANE.

    g   <- mean_i grad F_i(c)                           for i in a first cohort
    w_i <- SGD from c on F_i(w) + <g - grad F_i(c), w> + mu / 2 |w - c|^2
                                                        for i in the cohort
    c   <- mean_i w_i

  A client that drops out sends neither gradient nor model. The first cohort is as
  large as the second and drawn independently of it
  (public code seeds both alike, which makes them equal).

  Args:
    local: how clients train.
    prox_mu: mu.
    same_cohort: use one cohort for both passes.

  Raises:
    UserError: on a negative mu.
  """
  check_at_least(0, prox_mu=prox_mu)

  def first_cohort(data, cohort, key):
    key = jax.random.fold_in(key, _FIRST_COHORT)
    ids = em.sample_clients(key, data, cohort.ids.shape[0], local.mesh).ids
    count = (data.sizes(cohort.ids) > 0).sum()  # Without the cohort's padding.
    ids = jnp.where(jnp.arange(ids.shape[0]) < count, ids, data.num_clients)
    return Cohort(ids, everyone=False)

  def step(state, data, cohort, key):
    first, own = cohort, cohort_gradients(local, state.params, data, cohort)
    gradients = own
    if not (cohort.everyone or same_cohort):
      first = first_cohort(data, cohort, key)
      gradients = cohort_gradients(local, state.params, data, first)
    dropped = coin(key, data, first.ids, local.dropout_rate, DROPOUT)
    counts = (data.sizes(first.ids) > 0) & tree.all_finite(gradients) & ~dropped
    gradients = tree.where(counts, gradients, tree.zeros_like(gradients))
    zero = tree.zeros_like(state.params)
    row = jnp.zeros(counts.shape, jnp.int32)
    g = tree.weighted_mean(gradients, row, counts.astype(jnp.float32), zero, local.mesh)

    # Without any gradient of the first cohort there is nothing to correct by.
    someone = counts.any()
    correction = jax.tree.map(lambda g, own: jnp.where(someone, g - own, 0.0), g, own)
    params, trained = global_model.train_and_average(
        local, state.params, data, cohort, key, 'uniform',
        prox=prox_mu / 2 if prox_mu else None, correction=correction,
    )  # fmt: skip
    return GlobalState(params), trained.info()

  return Algorithm(global_model.init(local), step, global_model.deployed)
