"""Sequences: the next token at every position; accuracy by token and perplexity."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fesem_jax.tasks.targets import tokens
from fesem_jax.tasks.task import Metric, Task, add, softmax


def _cross_entropies(logits: jax.Array, y: jax.Array) -> jax.Array:
  """[B, S] cross entropy of each token; 0 where there is none."""
  one_hot = jax.nn.one_hot(y, logits.shape[-1])  # Zeros for -1, no token.
  return jnp.where(y >= 0, optax.softmax_cross_entropy(logits, one_hot), 0.0)


def token_cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
  """[B] float32 mean cross entropy of logits [B, S, L] and tokens [B, S], -1 none."""
  count = (y >= 0).sum(axis=-1)
  return _cross_entropies(logits, y).sum(axis=-1) / jnp.maximum(count, 1)


class TokenCounts(NamedTuple):
  """Outcome of predicting the tokens of each client's sequences."""

  correct: Any  # [M] int tokens that were predicted right
  tokens: Any  # [M] int tokens
  loss: Any  # [M] float32 sum of their cross entropies


def _measure(
  logits: jax.Array, y: jax.Array, weights: jax.Array, num_tokens: int
) -> TokenCounts:
  counted = (weights[:, None] > 0) & (y >= 0)
  loss = jnp.where(counted, _cross_entropies(logits, y), 0.0)
  correct = counted & (logits.argmax(axis=-1) == y)
  return TokenCounts(
    correct.sum(dtype=jnp.int32), counted.sum(dtype=jnp.int32), loss.sum()
  )


def _client_metrics(counts: TokenCounts) -> dict[str, np.ndarray]:
  correct, tokens, loss = (np.asarray(x, np.float64) for x in counts)
  with np.errstate(invalid='ignore', over='ignore'):
    return {'accuracy': correct / tokens, 'perplexity': np.exp(loss / tokens)}


def _micro(counts: TokenCounts) -> dict[str, float]:
  whole = TokenCounts(*(np.asarray(x, np.float64).sum() for x in counts))
  return {name: float(value) for name, value in _client_metrics(whole).items()}


def _mix(logits: jax.Array, log_weights: jax.Array) -> jax.Array:
  """Logarithms of the mixture's probabilities of each token."""
  log_weights = log_weights[:, None, None, None]
  return jax.nn.logsumexp(jax.nn.log_softmax(logits) + log_weights, axis=0)


def _shape(count: int, example_shape: tuple[int, ...]) -> tuple[int, ...]:
  return (count, *example_shape[:1])


SEQUENCE = Task(
  name='sequence',
  loss=token_cross_entropy,
  metrics=(
    Metric('accuracy', 'accuracy', 'acc', percent=True, higher_is_better=True),
    Metric(
      'perplexity', 'perplexity', 'perplexity', percent=False, higher_is_better=False
    ),
  ),
  targets=tokens,
  target_dtype=np.int32,
  outputs='tokens',
  has_classes=True,
  count_outputs=lambda y: int(y.max(initial=0)) + 1,
  output_shape=lambda count, shape, num_tokens: (*_shape(count, shape), num_tokens),
  target_shape=lambda count, shape, _: _shape(count, shape),
  measure=_measure,
  add=add,
  num_measured=lambda counts: np.asarray(counts.tokens, np.float64),
  by_client=_client_metrics,
  micro=_micro,
  mix=_mix,
  predict=lambda logits: logits.argmax(axis=-1).astype(np.int32),
  probabilities=softmax,
)
