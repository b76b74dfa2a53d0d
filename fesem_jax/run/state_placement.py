"""Placement of the arrays of a method's state on the devices of a run."""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from fesem_jax.core import offloading
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.sharding import CLIENTS


def placed_state(algorithm: Algorithm, train: FederatedData, key: jax.Array) -> Any:
  """Shapes of a method's state, placed as it is in a run: stacks split by client."""
  whole = NamedSharding(algorithm.local.mesh, PartitionSpec())
  split = NamedSharding(algorithm.local.mesh, PartitionSpec(CLIENTS))

  def place(s: Any) -> Any:
    return s.update(sharding=split if of_clients(s, train) else whole)

  state = jax.tree.map(place, jax.eval_shape(algorithm.init, key, train))
  return offloading.placed(state, algorithm.local.mesh)


def of_clients(x: Any, data: FederatedData) -> bool:
  """True if an array of a state, or its shape, is a stack of all clients' models."""
  return x.ndim > 1 and x.shape[0] == data.num_clients
