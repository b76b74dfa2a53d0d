"""Classification: one label for each example; accuracy and F1."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fesem_jax.tasks.targets import labels
from fesem_jax.tasks.task import Metric, Task, add, softmax


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
  """[B] float32 softmax cross entropy of logits [B, L] and labels [B] in 0..L-1."""
  # With integer labels the gradient would be a scatter, which is slow.
  return optax.softmax_cross_entropy(logits, jax.nn.one_hot(y, logits.shape[-1]))


_BLOCK = 2**15  # Clients whose metrics are computed at once.


class Counts(NamedTuple):
  """Outcome of classifying each client's examples."""

  correct: Any  # [M, L] int examples of each class that were classified right
  predicted: Any  # [M, L] int examples classified as each class
  actual: Any  # [M, L] int examples of each class


def _measure(
  logits: jax.Array, y: jax.Array, weights: jax.Array, num_classes: int
) -> Counts:
  guess = logits.argmax(axis=-1)
  weights = weights.astype(jnp.int32)

  def tally(labels, w):
    counts = jnp.zeros(num_classes, jnp.int32)
    return counts.at[labels].add(w, wrap_negative_indices=False)

  correct = tally(y, weights * (guess == y))
  return Counts(correct, tally(guess, weights), tally(y, weights))


def _num_measured(counts: Counts) -> np.ndarray:
  return np.asarray(counts.actual).sum(axis=1, dtype=np.float64)


def _client_metrics(counts: Counts) -> dict[str, np.ndarray]:
  """Accuracy, and `f1_score(average='macro', zero_division=0)` of labels that occur."""
  # Of some clients at a time: of all, [M, L] float64 would take gigabytes.
  blocks = [
    _block_metrics(Counts(*(np.asarray(c[i : i + _BLOCK], np.float64) for c in counts)))
    for i in range(0, max(1, len(counts.actual)), _BLOCK)
  ]
  return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}


def _block_metrics(counts: Counts) -> dict[str, np.ndarray]:
  correct, predicted, actual = counts
  size = actual.sum(axis=1)
  either = predicted + actual
  occurs = either > 0
  with np.errstate(invalid='ignore'):
    f1 = np.where(occurs, 2 * correct / np.where(occurs, either, 1), 0)
    return {
      'accuracy': correct.sum(axis=1) / size,
      'f1': f1.sum(axis=1) / occurs.sum(axis=1),
    }


def _micro(counts: Counts) -> dict[str, float]:
  """Each client's metrics, weighted by its examples."""
  size = _num_measured(counts)
  exists = size > 0
  return {
    name: float(np.average(values[exists], weights=size[exists]))
    if exists.any()
    else np.nan
    for name, values in _client_metrics(counts).items()
  }


def _pooled(counts: Counts) -> dict[str, float]:
  """Macro F1 of the examples of all clients together."""
  sums = (np.asarray(c).sum(0, np.float64, keepdims=True) for c in counts)
  return {'pooled_macro_f1': float(_block_metrics(Counts(*sums))['f1'][0])}


def _mix(logits: jax.Array, log_weights: jax.Array) -> jax.Array:
  """Logarithms of the mixture's class probabilities, log sum_k pi_k softmax(z_k)."""
  log_weights = log_weights[:, None, None]
  return jax.nn.logsumexp(jax.nn.log_softmax(logits) + log_weights, axis=0)


CLASSIFICATION = Task(
  name='classification',
  loss=cross_entropy,
  metrics=(
    Metric('accuracy', 'accuracy', 'acc', percent=True, higher_is_better=True),
    Metric('f1', 'F1', 'F1', percent=True, higher_is_better=True),
  ),
  targets=labels,
  target_dtype=np.int32,
  outputs='classes',
  has_classes=True,
  count_outputs=lambda y: int(y.max(initial=0)) + 1,
  output_shape=lambda count, _, num_classes: (count, num_classes),
  target_shape=lambda count, _shape, _classes: (count,),
  measure=_measure,
  add=add,
  num_measured=_num_measured,
  by_client=_client_metrics,
  micro=_micro,
  mix=_mix,
  predict=lambda logits: logits.argmax(axis=1).astype(np.int32),
  probabilities=softmax,
  pooled=_pooled,
)
