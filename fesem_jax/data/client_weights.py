"""Weights of clients in means, in place of those of the data."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from fesem_jax.core.client_info import checked_weights
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.utils.errors import UserError


def with_weights(
  weights: Any, train: FederatedData, others: Collection[str] = ()
) -> FederatedData:
  """Gives the clients of a training split weights, for `weighting=by_weight`.

  Args:
    weights: name of each client -> its weight; or [M] in the order of the clients.
    train: training split of M clients, on the host.
    others: names of clients that may have weights although they are not in the split.

  Returns:
    The same with `weights`, also those of its `info`.

  Raises:
    UserError: if a client has no weight, a name is unknown, or they are no weights.
  """
  names, named = train.info.names.astype(str), '`weighting`'
  if isinstance(weights, Mapping):
    given = {str(name): weight for name, weight in weights.items()}
    if unknown := [n for n in given if n not in {*names, *map(str, others)}]:
      raise UserError(f'{named}: no client is called {unknown[0]!r}.')
    if lacking := [n for n in names if n not in given]:
      raise UserError(f'{named}: client {lacking[0]} has no weight; give each one.')
    weights = [given[name] for name in names]
  floats = checked_weights(weights, named)
  if floats.shape != (train.num_clients,):
    raise UserError(
      f'{named} has shape {floats.shape}; give each of the {train.num_clients} clients '
      'one weight.'
    )
  info = dataclasses.replace(train.info, weights=floats)
  return dataclasses.replace(train, info=info, weights=floats)
