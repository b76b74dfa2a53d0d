"""Models of clients that trained from one common start: what their distances say.

After a round of FeSEM each client's model lies near the center that it started from,
so that every clustering of trained models looks perfect. Only models from one start
tell how many clusters there are.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax import streams, tree, waits
from fesem_jax.base import Cohort, FederatedData
from fesem_jax.cohorts import arrange, order_of_clients
from fesem_jax.kmeans import centered_gram
from fesem_jax.local import train_cohort
from fesem_jax.method import ClientModels
from fesem_jax.programs import Programs
from fesem_jax.rounds import keys_of_run
from fesem_jax.training import LocalTraining


def inner_products(
  local: LocalTraining,
  train: FederatedData,
  *,
  epochs: int = 1,
  seed: int = 0,
  layer: str = 'all',
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
    layer: 'all' parameters, or those of the named layer; FeSEM's `cluster_on`.
    programs: of earlier calls with the same `local`, epochs and layer.

  Returns:
    [M, M] float64 about the clients' mean; rows and columns of clients whose model
    is not finite are NaN.
  """
  schedule = local.schedule._replace(epochs=epochs, steps=0)
  local = local._replace(schedule=schedule, dropout_rate=0.0)
  places = np.argsort(order_of_clients(local, train))
  train, _ = arrange(local, train, train)
  key = keys_of_run(seed, local.mesh)[streams.INIT]

  def products(key: jax.Array, train: FederatedData) -> Any:
    start = tree.expand(local.model.init(streams.fold(key, streams.MODEL)))
    everyone = Cohort(jnp.arange(train.num_clients), everyone=True)
    train_key = streams.fold(key, streams.LOCAL)
    trained = train_cohort(local, ClientModels(start), train, everyone, train_key)
    sound = trained.took_part()
    params = trained.params if layer == 'all' else trained.params[layer]
    return centered_gram(params, sound), sound

  program = (programs or Programs()).compiled(
    ('common start', layer), products, key, train
  )
  with waits.told('models from one common start'):
    gram, sound = jax.device_get(program(key, train))
  gram, sound = gram.astype(np.float64), sound & np.isfinite(gram.diagonal())
  gram[~sound] = gram[:, ~sound] = np.nan
  return gram[np.ix_(places, places)]
