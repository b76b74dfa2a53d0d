"""Local training with a pull of each client to a model."""

import jax

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training.cohort import for_each_client, train_cohort
from fesem_jax.training.local_sgd import local_sgd, toward
from fesem_jax.training.trained import Reduction, Trained


def train_pulled(
  local: LocalTraining,
  starts: ClientModels,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  reduction: Reduction,
  pull: tuple[Params, jax.Array] | None,
) -> Trained:
  """`train_cohort` with a pull to models [S, ...] of factors [S] float32, or None."""
  if pull is None:
    return train_cohort(local, starts, data, cohort, key, reduction)

  def update_client(client):
    model = local_sgd(client, toward(*client.inputs))
    return model, reduction.sent_by(client, model), None

  return for_each_client(
    update_client, local, starts, data, cohort, key, reduction, inputs=pull
  )
