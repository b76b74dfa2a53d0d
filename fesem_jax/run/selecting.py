"""The clients of a round that a `Selection` chooses on the host."""

from typing import Any

import jax
import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.arrangement import draw_cohort, selected_cohort
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.selection import Clients
from fesem_jax.core.types import Cohort
from fesem_jax.evaluation.evaluate import mean_losses
from fesem_jax.run import programs
from fesem_jax.run.spec import Spec
from fesem_jax.utils import processes


def selected(
  spec: Spec,
  algorithm: Algorithm,
  state: Any,
  train: FederatedData,
  number: int,
) -> tuple[Cohort, dict[str, Any]]:
  """The clients of a round `number`, from 1, and entries of its record on them."""
  selection, candidates = spec.selection, 0
  if selection is None:
    return draw(spec, train, number), {}
  mesh, real = algorithm.local.mesh, len(train.info.names)
  in_order = np.argsort(np.asarray(train.client_ids)[:real])  # The order of the data.

  def losses(places: np.ndarray) -> np.ndarray:
    nonlocal candidates
    candidates += len(places)
    cohort = selected_cohort(places, len(places), number, train, mesh)
    cohort = Cohort(cohort.ids, everyone=False)

    def measure(state: Any, train: FederatedData, cohort: Cohort) -> jax.Array:
      used = algorithm.deployed(state, train)
      return mean_losses(used, algorithm.local, train, cohort)

    args = (state, train, cohort)
    what = 'the losses of candidates'
    cohort_values = programs.compiled(what, algorithm, measure, *args)(*args)
    values = np.full(train.num_clients + 1, np.nan)
    values[np.asarray(cohort.ids)] = processes.on_host(cohort_values)
    return values[in_order[places]]

  rng = prng_streams.host_rng(spec.seed, prng_streams.COHORT, number)
  names, sizes = train.info.names, np.asarray(train.sizes())
  ids = selection.ids(number, rng, Clients(names[in_order], sizes[in_order], losses))
  cohort = selected_cohort(ids, spec.clients_per_round, number, train, mesh)
  return cohort, {'candidates': candidates} if candidates else {}


def draw(spec: Spec, train: FederatedData, number: int) -> Cohort:
  """The clients of a round, counted from 1; where they are selected, none."""
  mesh, count = spec.algorithm.local.mesh, spec.clients_per_round
  if spec.selection is not None:
    return selected_cohort(np.zeros(0, np.int64), count, number, train, mesh)
  return draw_cohort(spec.seed, number, count, train, mesh)
