"""The regret of an assignment: what its clients lose by not having the best center."""

from typing import NamedTuple

import numpy as np


class Hindsight(NamedTuple):
  """Clients' assignments beside the best ones in hindsight."""

  # [M] int32 center of least loss, of those that some client is assigned to; of equal
  # ones the client's own, then the first.
  best: np.ndarray
  regret: np.ndarray  # [M] float64 loss of the own center less that of the best, >= 0
  # [M] float64 least loss of the other centers less that of the own: negative where
  # another one is better. NaN where all clients have one center.
  margin: np.ndarray


def hindsight(losses: np.ndarray, assignment: np.ndarray) -> Hindsight:
  """Compares each client's center with the others.

    regret_i = F_i(c_{r_i}) - min_k F_i(c_k)
    margin_i = min_{k != r_i} F_i(c_k) - F_i(c_{r_i})

  The regret is that against the best fixed choice in hindsight (Cesa-Bianchi and
  Lugosi, "Prediction, Learning, and Games", 2006), and the margin that of multiclass
  classification (Crammer and Singer, JMLR 2001) with -F_i(c_k) as the score of k.

  `losses` [M, K] are the mean loss of each center on each client's examples, infinite
  where it is not finite, as `cohort_losses` returns them; `assignment` [M] int is the
  center of each client.
  """
  losses = np.asarray(losses, np.float64)
  count, num_centers = losses.shape
  used = np.bincount(assignment, minlength=num_centers) > 0
  losses = np.where(used[None], losses, np.inf)
  rows = np.arange(count)
  chosen_losses = losses[rows, assignment]
  other_losses = losses.copy()
  other_losses[rows, assignment] = np.inf
  best = np.where(
    chosen_losses <= other_losses.min(axis=1), assignment, other_losses.argmin(axis=1)
  )
  with np.errstate(invalid='ignore'):
    regret = chosen_losses - losses[rows, best]
    margin = other_losses.min(axis=1) - chosen_losses
  if used.sum() < 2:
    margin = np.full(count, np.nan)
  return Hindsight(best.astype(np.int32), regret, margin)
