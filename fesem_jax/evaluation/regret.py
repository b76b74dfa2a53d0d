"""The regret of an assignment: what its clients lose by not having the best center."""

from typing import NamedTuple

import numpy as np


class Hindsight(NamedTuple):
  """Clients' assignments compared with the best ones in hindsight."""

  best: np.ndarray  # [M] int32 used center of least loss; of equal ones the assigned
  regret: np.ndarray  # [M] float64 loss of the assigned center minus the best, >= 0
  margin: np.ndarray  # [M] float64 least other loss minus the assigned; NaN without


def hindsight(losses: np.ndarray, assignment: np.ndarray) -> Hindsight:
  """Compares each client's center with the others.

    regret_i = F_i(c_{r_i}) - min_k F_i(c_k)
    margin_i = min_{k != r_i} F_i(c_k) - F_i(c_{r_i})

  See Cesa-Bianchi and Lugosi, "Prediction, Learning, and Games" (2006), and Crammer and
  Singer (JMLR 2001). `losses` [M, K] are those of `cohort_losses`; `assignment` [M] int
  is the center of each client.
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
