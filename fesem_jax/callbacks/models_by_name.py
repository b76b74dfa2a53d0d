"""The models that clients deploy during a run, by the names of the clients."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from fesem_jax.core.types import Params
from fesem_jax.results.deployed_models import DeployedModels
from fesem_jax.utils.errors import UserError


class ModelsByName(Mapping[str, Params]):
  """Name of each client -> the model that it deploys, on the host.

  The first access fetches the models of all clients. Clients that use a mixture of
  models have no single model; see `deployed`.

  Args:
    state: of the method; the next round reuses its memory.
    fetch: state -> the models.
  """

  def __init__(self, state: Any, fetch: Callable[[Any], DeployedModels]):
    self._state, self._fetch = state, fetch
    self._held: DeployedModels | None = None

  @property
  def deployed(self) -> DeployedModels:
    """All models: the centers and their clients, `predict`, `export`."""
    if self._held is None:
      if any(getattr(x, 'is_deleted', bool)() for x in jax.tree.leaves(self._state)):
        raise UserError(
          'The models of a round exist until the callback returns; access '
          '`models` in the callback, and store what is needed later.'
        )
      self._held, self._state = self._fetch(self._state), None
    return self._held

  def __getitem__(self, client: str) -> Params:
    try:
      return self.deployed.params(client=client)
    except UserError as e:
      if client in self:
        raise
      raise KeyError(str(e)) from e

  def __contains__(self, client: object) -> bool:
    return client in self.deployed.names.tolist()

  def __iter__(self) -> Iterator[str]:
    return iter(self.deployed.names.tolist())

  def __len__(self) -> int:
    return len(self.deployed.names)
