"""Notes on runs of methods that are, in these runs, simpler ones."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fesem_jax.utils import processes

# Models are one if their numbers differ by less than this share of the largest one:
# rounding of their sums, and no training, keeps them so close.
_ROUNDING = 1e-5


def plain_mean(fewest: int, clients: float) -> str | None:
  """A note that the rule in place of the mean leaves out no model of a round.

  None if it leaves out some. `fewest` is that of `Algorithm`, and `clients` are those
  of a round, on average of the largest cluster.
  """
  if clients >= fewest - 1e-4:
    return None
  return (
    f'The aggregation leaves out no model of fewer than {fewest} clients, and a center '
    f'has at most {clients:.3g} a round on average: it is the plain mean. Give more '
    'clients, or a rule that leaves out more (`aggregation`, `beta`, `krum_models`).'
  )


def one_model(state: Any, sizes: Sequence[int], mixes: bool) -> str | None:
  """A note that the clusters of clients have equal models; None if they have not.

  The models are the `centers` of a method's state, if it has them, or of the one that
  it nests in `method`. `sizes` are the clients of each cluster; if a method `mixes`
  models, all its components are clusters.
  """
  while hasattr(state, 'method'):
    state = state.method
  rows = np.flatnonzero(np.ones_like(sizes) if mixes else sizes)
  if len(rows) < 2 or not hasattr(state, 'centers'):
    return None

  def are_equal(stack: jax.Array) -> bool:
    models = processes.on_host(stack)[rows]
    apart = np.abs(models - models[:1]).max(initial=0.0)
    return bool(apart <= _ROUNDING * np.abs(models).max(initial=0.0))

  if not all(map(are_equal, jax.tree.leaves(state.centers))):
    return None
  return (
    f'The models of all {len(rows)} clusters are equal, whatever the clusters of '
    'clients say: the run is one without clusters, such as FedAvg. Models stay equal '
    'that start equal, as from given parameters, and become equal with a large '
    '`temperature`.'
  )
