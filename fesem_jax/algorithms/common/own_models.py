"""The stacks of models that stay with their clients, and where they are kept."""

from typing import Any

from fesem_jax.core import offloading, sharding, tree
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import check_choice


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
