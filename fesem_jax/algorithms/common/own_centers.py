"""A round in which every client trains the center of its cluster."""

import jax

from fesem_jax.algorithms.common.centers import round_info
from fesem_jax.algorithms.hypo_cluster import add_to_own
from fesem_jax.clustering import em
from fesem_jax.core.algorithm import ClientModels, RoundInfo
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import mean_of
from fesem_jax.core.types import Cohort, FederatedData, Params
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.reduction import Reduction
from fesem_jax.training.trained import Trained
from fesem_jax.utils.errors import UserError


def check_everyone(cohort: Cohort, method: str, reason: str) -> None:
  """Raises `UserError` unless all clients are in the round."""
  if not cohort.everyone:
    raise UserError(f'`clients_per_round` must be 0 for {method}: {reason}.')


def train_and_average(
  local: LocalTraining,
  used: ClientModels,
  before: jax.Array,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  weighting: str,
) -> tuple[Params, Trained, RoundInfo]:
  """Trains all clients from their centers, which become the means of their models.

  Args:
    local: how clients train.
    used: centers [K, ...] and the choice of each client.
    before: [M] int32 choice in the round before.
    data: training split.
    cohort: all M clients.
    key: of the round.
    weighting: of the clients in means, see `Trained.weights`.

  Returns:
    The new centers, what became of the clients, and the round's report.
  """
  old = used.shared
  assert used.choice is not None
  add = Reduction(add_to_own(weighting), em.Sums.zeros(old), keep=False)
  trained = train_cohort(local, used, data, cohort, key, reduction=add)
  centers = mean_of(trained.sums.clients, old)
  value, count = trained.sums.objective(old, centers), used.num_models()
  info = round_info(trained, count, value, before, used.choice, data)
  return centers, trained, info
