"""Clients' state between rounds, and the storage of their models."""

from typing import Any

import jax

from fesem_jax.core import offloading, sharding, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, Params
from fesem_jax.utils.errors import check_choice


def deployed(state: Any, data: FederatedData) -> ClientModels:
  """The `deployed` of a method whose clients use their models `client_params`."""
  del data
  return ClientModels(own=state.client_params)


def check_client_state(client_state: str) -> None:
  """Raises `UserError` unless stacks can be kept there."""
  check_choice('client_state', client_state, ('stacked', 'offloaded'))


def repeat(
  local: LocalTraining, model: Params, num_clients: int, client_state: str
) -> Any:
  """A stack of equal models, one for each client.

  Args:
    local: how clients train, and on which devices.
    model: one model, without a leading axis.
    num_clients: M.
    client_state: 'stacked' keeps them on the devices, 'offloaded' in the memory of
      their host.

  Returns:
    [M, ...], split over the devices; an `offloading.Offloaded` if in the host's memory.
  """
  if client_state == 'offloaded':
    return offloading.repeat(model, num_clients, local.mesh)
  return sharding.split_clients(tree.repeat(model, num_clients), local.mesh)


def kept(state: Any, cohort: Cohort, counts: jax.Array, **found: jax.Array) -> Any:
  """The state with what a round found of its clients.

  Args:
    state: with fields [M, ...].
    cohort: S clients.
    counts: [S] bool, of whom it is kept; all others keep what they have.
    **found: field -> [S, ...].
  """

  def put(name: str, new: jax.Array) -> jax.Array:
    old = getattr(state, name)
    return tree.with_rows(
      old, cohort, tree.where(counts, new, tree.rows_of(old, cohort))
    )

  return state._replace(**{name: put(name, new) for name, new in found.items()})
