"""Models that clients keep between rounds, and where they are stored."""

from typing import Any, Literal

import jax

from fesem_jax.core import offloading, sharding, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, Params

# Where clients' models are kept: on the devices, or in the memory of their host.
ClientState = Literal['stacked', 'offloaded']


def deployed(state: Any, data: FederatedData) -> ClientModels:
  return ClientModels(personal=state.client_params)


def repeat(
  local: LocalTraining, model: Params, num_clients: int, client_state: str
) -> Any:
  """A stack [M, ...] of a model, on the devices or 'offloaded' to the host's memory."""
  if client_state == 'offloaded':
    return offloading.repeat(model, num_clients, local.mesh)
  return sharding.split_clients(tree.repeat(model, num_clients), local.mesh)


def updated(state: Any, cohort: Cohort, counts: jax.Array, **rows: jax.Array) -> Any:
  """The state with new `rows` [S, ...] of fields, of clients that count [S] bool."""

  def put(name: str, new: jax.Array) -> jax.Array:
    old = getattr(state, name)
    return tree.with_rows(
      old, cohort, tree.where(counts, new, tree.rows_of(old, cohort))
    )

  return state._replace(**{name: put(name, new) for name, new in rows.items()})
