"""Distances between models of clients that trained from one common start.

After a round of FeSEM each client's model lies near the center that it started from,
so that every clustering of trained models looks perfect. Only models from one start
tell how many clusters there are.
"""

from typing import Any

import jax
import numpy as np

from fesem_jax.algorithms.common.first_clusters import before_rounds, random_start
from fesem_jax.core import prng_streams
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.gram_matrices import centered_gram
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import everyone
from fesem_jax.data.arrangement import arrange_all, order_of_clients
from fesem_jax.run.programs import Programs
from fesem_jax.run.rounds import keys_of_run
from fesem_jax.server import comparison
from fesem_jax.training.cohort import train_cohort
from fesem_jax.utils import processes, progress_lines


def inner_products(
  local: LocalTraining,
  train: FederatedData,
  *,
  epochs: int = 1,
  seed: int = 0,
  cluster_on: str = 'all',
  data_placement: str = 'auto',
  programs: Programs | None = None,
) -> np.ndarray:
  """Inner products of the models that the first clustering of FeSEM sees.

  All clients train from one random model (Section 6.1.4), the same as in `simulate`
  with this seed; no client drops out.

  Args:
    local: how clients train, but for the epochs.
    train: training split of M clients, on the host.
    epochs: local epochs.
    seed: decides the model and the order of examples.
    cluster_on: of FeSEM, what of the models is compared.
    data_placement: see `LocalTraining`.
    programs: of earlier calls with the same `local`, epochs and `cluster_on`.

  Returns:
    [M, M] float64 about the clients' mean; rows and columns of clients whose model
    is not finite are NaN.
  """
  local = before_rounds(local, epochs)
  compare = comparison.build(cluster_on, local.model)
  places = np.argsort(order_of_clients(local, train))
  (train,) = arrange_all(local, train, data_placement=data_placement)
  key = keys_of_run(seed, local.mesh)[prng_streams.INIT]

  def products(key: jax.Array, train: FederatedData) -> Any:
    starts = random_start(local, train, key, 'common')
    train_key = prng_streams.fold(key, prng_streams.LOCAL)
    trained = train_cohort(local, starts, train, everyone(train), train_key)
    finite = trained.took_part()
    alike = compare.alike(trained.params, finite, local.mesh)
    return centered_gram(compare.part(alike), finite, local.mesh), finite

  program = (programs or Programs()).compiled(
    ('common start', cluster_on), products, key, train
  )
  with progress_lines.waiting_for('models from one common start'):
    gram, is_finite = processes.on_host(program(key, train))
  gram, is_finite = gram.astype(np.float64), is_finite & np.isfinite(gram.diagonal())
  gram[~is_finite] = gram[:, ~is_finite] = np.nan
  return gram[np.ix_(places, places)]
