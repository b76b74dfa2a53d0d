"""The outcome of every client in a round, for the client history."""

import numpy as np

from fesem_jax.core.algorithm import RoundInfo
from fesem_jax.results.client_history import Part


def part_of(
  info: RoundInfo | None,
  assignment: np.ndarray | None,
  places: np.ndarray,
  examples: np.ndarray,
) -> Part:
  """The columns of a round before an evaluation, clients in the order of their names.

  Args:
    info: what the method told; None before the first round.
    assignment: [M] cluster of each client; None without clusters.
    places: [M] position of each client in the data as arranged.
    examples: [M] training examples of each client.
  """
  count, clients = len(examples), info and info.clients
  if assignment is None:
    assignment = np.full(count, -1)
  elif info is not None and info.clusters is not None:
    joined = assignment < len(info.clusters.sizes)
    assignment = np.where(joined, assignment, -1)
  loss, unknown = np.full(count, np.nan), np.full(count, np.nan)
  took_part, failed = np.zeros(count, bool), np.zeros(count, bool)
  steps = np.full(count, -1 if info is not None and clients is None else 0)
  if clients is not None:
    exist = np.asarray(clients.ids) < count
    ids, losses, finite, arrived, taken = (np.asarray(x)[exist] for x in clients)
    own = np.argsort(places)[ids]  # Position as arranged -> that of the user.
    took_part[own], failed[own] = arrived & finite, ~finite
    loss[own], steps[own] = np.where(arrived, losses, np.nan), taken
  return {
    'assignment': assignment, 'loss': loss, 'deployed': unknown, 'finetuned': unknown,
    'examples': examples, 'steps': steps, 'took_part': took_part, 'failed': failed,
  }  # fmt: skip
