"""Local models of Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for
Clustered Federated Learning", NeurIPS 2020, as in the authors' code.
"""

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.non_fed import NonFedState, non_fed
from fesem_jax.core import sharding
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining


def local_models(local: LocalTraining) -> Algorithm:
  """`non_fed`, but that each client begins with a random model of its own.

  Args:
    local: how clients train.
  """

  def init(key, data):
    keys = data.keys_of(key, jnp.arange(data.num_clients))
    own = jax.vmap(local.model.init)(keys)
    return NonFedState(sharding.split_clients(own, local.mesh))

  return non_fed(local)._replace(init=init)
