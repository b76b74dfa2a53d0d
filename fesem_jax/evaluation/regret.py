"""The regret of an assignment: what its clients lose by not having the best center."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.evaluation import evaluate
from fesem_jax.training.client_losses import cohort_losses


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
  where it is not finite; `assignment` [M] int is the center of each client.
  """
  losses = np.asarray(losses, np.float64)
  count, num_centers = losses.shape
  used = np.bincount(assignment, minlength=num_centers) > 0
  losses = np.where(used[None], losses, np.inf)
  rows = np.arange(count)
  own = losses[rows, assignment]
  others = losses.copy()
  others[rows, assignment] = np.inf
  best = np.where(own <= others.min(axis=1), assignment, others.argmin(axis=1))
  with np.errstate(invalid='ignore'):
    regret = own - losses[rows, best]
    margin = others.min(axis=1) - own
  if used.sum() < 2:
    margin = np.full(count, np.nan)
  return Hindsight(best.astype(np.int32), regret, margin)


def mean_over(values: np.ndarray, weights: np.ndarray) -> float | None:
  """The mean of finite values by weights; None where no weight is positive.

  `values` are [M] float64; `weights` are [M], 0 for clients that do not count.
  """
  kept = np.isfinite(values) & (weights > 0)
  return float(np.average(values[kept], weights=weights[kept])) if kept.any() else None


def center_losses(algorithm: Algorithm) -> Callable[..., tuple[jax.Array, ...]]:
  """(state, train, test) -> losses [M, K] of the centers on either split."""

  def losses(state, train, test):
    centers = algorithm.deployed(state, train).shared
    return tuple(cohort_losses(algorithm.local, centers, d) for d in (train, test))

  return losses


def figures_of_choice(algorithm: Algorithm) -> Callable[..., evaluate.Totals]:
  """(state, train, test, choice [M]) -> figures of clients with these centers."""

  def figures(state, train, test, choice):
    used = ClientModels(algorithm.deployed(state, train).shared, choice)
    key = jax.random.key(0)  # Nothing is fine-tuned.
    return evaluate.evaluate_clients(used, algorithm.local, train, test, key, 0)[0]

  return figures


def as_record(
  trained: Hindsight,
  tested: Hindsight,
  assignment: np.ndarray,
  sizes: Sequence[np.ndarray],
  gain: float,
) -> dict[str, dict[str, Any]]:
  """The entries `regret` and `margin` of a record.

  `trained` is by losses on training examples, `tested` by losses on test examples;
  `assignment` [M] int is the center of each client, and `sizes` are [M] training and
  [M] test examples of each. `gain` is `test_gain`; see `callbacks.AssignmentRegret`.
  """
  everyone, (train_sizes, test_sizes) = np.ones(len(assignment)), sizes
  return {
    'regret': {
      'mean': mean_over(trained.regret, everyone),
      'by_examples': mean_over(trained.regret, train_sizes),
      'misassigned': mean_over(trained.best != assignment, everyone),
      'test_mean': mean_over(tested.regret, test_sizes > 0),
      'test_by_examples': mean_over(tested.regret, test_sizes),
      'test_gain': float(gain) if np.isfinite(gain) else None,
    },
    'margin': {
      'mean': mean_over(trained.margin, everyone),
      'by_examples': mean_over(trained.margin, train_sizes),
    },
  }


def of_clients(
  trained: Hindsight, tested: Hindsight, sizes: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
  """Columns of the table of clients; see `as_record`."""
  return {
    'best_cluster': trained.best,
    'regret': trained.regret,
    'margin': trained.margin,
    'test_regret': np.where(sizes[1] > 0, tested.regret, np.nan),
  }
