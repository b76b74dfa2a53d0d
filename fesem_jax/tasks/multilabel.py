"""Multilabel: any number of L labels for each example; exact match, F1 and AUC.

One label is binary classification with one logit.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fesem_jax.tasks.targets import label_sets
from fesem_jax.tasks.task import Metric, Task, add
from fesem_jax.utils.errors import warn_once

# AUC is that of logits that are rounded to _BINS values, which can be counted; those of
# one value are ties. The values are closer together the smaller they are: neighbors
# differ by 6 % from _LEAST up to _MOST, to which larger ones are cut.
_BINS, _LEAST, _MOST = 512, 0.01, 1e4
_TIED = 0.2  # Share of the pairs of a label that are taken for ties, at most.
_BLOCK = 2**10  # Clients whose metrics are computed at once.


def binary_cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
  """[B] float32 mean sigmoid cross entropy of logits and labels 0 or 1, [B, L]."""
  losses = optax.sigmoid_binary_cross_entropy(logits, y.astype(logits.dtype))
  return losses.mean(axis=-1)


class LabelCounts(NamedTuple):
  """Outcome of labeling each client's examples."""

  examples: Any  # [M] int
  exact: Any  # [M] int examples with all their labels and no other
  correct: Any  # [M, L] int examples that rightly got a label
  predicted: Any  # [M, L] int examples that got it
  actual: Any  # [M, L] int examples that have it
  logits: Any  # [M, L, 2, _BINS] int examples without and with it, by their logit


def _measure(
  logits: jax.Array, y: jax.Array, weights: jax.Array, num_labels: int
) -> LabelCounts:
  ones = (weights > 0).astype(jnp.int32)
  mask, guess = ones[:, None], (logits > 0).astype(jnp.int32)
  most = math.asinh(_MOST / _LEAST)
  share = jnp.arcsinh(jnp.clip(logits, -_MOST, _MOST) / _LEAST) / most
  bins = jnp.round((share + 1) / 2 * (_BINS - 1)).astype(jnp.int32)
  label = jnp.arange(num_labels)[None]
  histogram = jnp.zeros((num_labels, 2, _BINS), jnp.int32)
  return LabelCounts(
    ones.sum(),
    ((guess == y).all(axis=1) * ones).sum(),
    (mask * guess * y).sum(axis=0),
    (mask * guess).sum(axis=0),
    (mask * y).sum(axis=0),
    histogram.at[label, y, bins].add(mask),
  )


def _metrics(counts: LabelCounts) -> dict[str, np.ndarray]:
  """[M] metrics of scikit-learn; F1 is over labels that occur, AUC over mixed ones."""
  size, exact, correct, predicted, actual, logits = counts
  either = predicted + actual
  occurs, whole = either > 0, either.sum(axis=1)
  f1 = 2 * correct / np.where(occurs, either, 1)
  negative, positive = logits[:, :, 0], logits[:, :, 1]
  # Pairs of one example with the label and one without that has a lower logit.
  lower_negatives = np.cumsum(negative, axis=2) - negative
  ordered = (positive * (lower_negatives + negative / 2)).sum(axis=2)
  pairs = positive.sum(axis=2) * negative.sum(axis=2)
  auc = ordered / np.where(pairs > 0, pairs, 1)
  with np.errstate(invalid='ignore'):
    metrics = {
      'exact_match': exact / size,
      'f1_micro': 2 * correct.sum(axis=1) / np.where(whole > 0, whole, 1),
      'f1_macro': f1.sum(axis=1) / np.maximum(occurs.sum(axis=1), 1),
      'auc': np.where(pairs > 0, auc, 0).sum(axis=1) / (pairs > 0).sum(axis=1),
    }
  return {name: np.where(size > 0, values, np.nan) for name, values in metrics.items()}


def _client_metrics(counts: LabelCounts) -> dict[str, np.ndarray]:
  # Of some clients at a time: all in float64 would take gigabytes.
  blocks = [
    _metrics(LabelCounts(*(np.asarray(c[i : i + _BLOCK], np.float64) for c in counts)))
    for i in range(0, max(1, len(counts.examples)), _BLOCK)
  ]
  return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}


def _micro(counts: LabelCounts) -> dict[str, float]:
  """Over the examples of all clients together: no mean of the clients' metrics."""
  whole = (np.asarray(c).sum(axis=0, dtype=np.float64, keepdims=True) for c in counts)
  summed = LabelCounts(*whole)
  _warn_of_ties(summed.logits[0])
  return {name: float(values[0]) for name, values in _metrics(summed).items()}


def _warn_of_ties(counts: np.ndarray) -> None:
  """Warns if AUC is rough; `counts` [L, 2, _BINS] are examples by their logits."""
  negative, positive = counts[:, 0], counts[:, 1]
  pairs = positive.sum(axis=1) * negative.sum(axis=1)
  share = (positive * negative).sum(axis=1) / np.where(pairs > 0, pairs, 1)
  if share.max() > _TIED:
    warn_once('AUC is rough: it ties logits within 6 %; compute it in a callback')


def _mix(logits: jax.Array, log_weights: jax.Array) -> jax.Array:
  """The logit of the mixture's probability, sum_k pi_k sigmoid(z_k)."""
  shares = log_weights[:, None, None]
  has = jax.nn.logsumexp(jax.nn.log_sigmoid(logits) + shares, axis=0)
  lacks = jax.nn.logsumexp(jax.nn.log_sigmoid(-logits) + shares, axis=0)
  return has - lacks


def _probabilities(logits: np.ndarray) -> np.ndarray:
  return np.asarray(jax.nn.sigmoid(logits))


_EXACT = Metric('exact_match', 'exact match', 'exact', True, True)
_F1_MICRO = Metric('f1_micro', 'F1 of all labels', 'F1 micro', True, True)
_F1_MACRO = Metric('f1_macro', 'mean F1 of labels', 'F1 macro', True, True)
# Of a client whose examples all have a label, or none has it, there is none.
_AUC = Metric('auc', 'AUC', 'AUC', True, True, may_lack=True)

MULTILABEL = Task(
  name='multilabel',
  loss=binary_cross_entropy,
  metrics=(_EXACT, _F1_MICRO, _F1_MACRO, _AUC),
  targets=label_sets,
  target_dtype=np.int32,
  outputs='labels',
  has_classes=False,
  count_outputs=lambda y: y.shape[1],
  output_shape=lambda count, _, num_labels: (count, num_labels),
  target_shape=lambda count, _, num_labels: (count, num_labels),
  measure=_measure,
  add=add,
  num_measured=lambda counts: np.asarray(counts.examples, np.float64),
  by_client=_client_metrics,
  micro=_micro,
  mix=_mix,
  predict=lambda logits: (logits > 0).astype(np.int32),
  probabilities=_probabilities,
)
