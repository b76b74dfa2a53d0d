"""Regression: D real targets for each example; RMSE, R2 and mean squared error."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.tasks.targets import targets
from fesem_jax.tasks.task import Metric, Task


def squared_error(outputs: jax.Array, y: jax.Array) -> jax.Array:
  """[B] float32 mean squared error of outputs and targets, both [B, D] float32."""
  return jnp.square(outputs - y).mean(axis=-1)


class Errors(NamedTuple):
  """Errors of the predictions for each client's examples."""

  count: Any  # [M] float32 examples
  squared: Any  # [M, D] float32 sum of squared errors
  mean: Any  # [M, D] float32 mean of the targets
  scatter: Any  # [M, D] float32 sum of squared differences of targets from their mean


def _measure(
  outputs: jax.Array, y: jax.Array, weights: jax.Array, num_targets: int
) -> Errors:
  mask, count = weights[:, None] > 0, weights.sum()
  mean = jnp.where(mask, y, 0.0).sum(axis=0) / jnp.maximum(count, 1.0)
  scatter = jnp.where(mask, jnp.square(y - mean[None]), 0.0).sum(axis=0)
  squared = jnp.where(mask, jnp.square(outputs - y), 0.0).sum(axis=0)
  return Errors(count, squared, mean, scatter)


def _add(a: Errors, b: Errors) -> Errors:
  """Both sets of examples; the scatter by Chan, Golub and LeVeque (1979)."""
  count = a.count + b.count
  share = (b.count / jnp.maximum(count, 1.0))[..., None]
  difference = b.mean - a.mean
  return Errors(
    count,
    a.squared + b.squared,
    a.mean + difference * share,
    a.scatter + b.scatter + jnp.square(difference) * a.count[..., None] * share,
  )


def _metrics(
  count: np.ndarray, squared: np.ndarray, mean: np.ndarray, scatter: np.ndarray
) -> dict[str, np.ndarray]:
  """RMSE of all targets, R2 (`r2_score`) and mean squared error from sums [..., D]."""
  # Equal targets scatter by what float32 rounds off their mean.
  rounding = count[..., None] * np.square(4 * np.finfo(np.float32).eps * mean)
  scatter = np.where(scatter > rounding, scatter, 0.0)
  with np.errstate(invalid='ignore'):
    loss = squared.mean(axis=-1) / count
    constant = np.where(squared > 0, 0.0, 1.0)
    r2 = np.where(
      scatter > 0, 1 - squared / np.where(scatter > 0, scatter, 1), constant
    )
    # An error that is not a number must not pass for none.
    r2 = np.where(np.isnan(squared), np.nan, r2).mean(axis=-1)
    r2 = np.where(count > 0, r2, np.nan)
    return {'rmse': np.sqrt(loss), 'r2': r2, 'loss': loss}


def _client_metrics(errors: Errors) -> dict[str, np.ndarray]:
  return _metrics(*(np.asarray(x, np.float64) for x in errors))


def _micro(errors: Errors) -> dict[str, float]:
  """Metrics of the examples of all clients together."""
  count, squared, mean, scatter = (np.asarray(x, np.float64) for x in errors)
  total = count.sum()
  if not total:
    return dict.fromkeys(('rmse', 'r2', 'loss'), float('nan'))
  exists = count > 0
  count, mean = count[exists, None], mean[exists]
  center = (count * mean).sum(axis=0) / total
  whole = scatter[exists].sum(axis=0) + (count * np.square(mean - center)).sum(axis=0)
  metrics = _metrics(total, squared[exists].sum(axis=0), center, whole)
  return {name: float(value) for name, value in metrics.items()}


def _mix(outputs: jax.Array, log_weights: jax.Array) -> jax.Array:
  """The mean of the mixture, sum_k pi_k f_k(x)."""
  return (jnp.exp(log_weights)[:, None, None] * outputs).sum(axis=0)


_RMSE = Metric('rmse', 'RMSE', 'RMSE', percent=False, higher_is_better=False)
_R2 = Metric('r2', 'R2', 'R2', percent=False, higher_is_better=True)
_LOSS = Metric('loss', 'loss', 'loss', percent=False, higher_is_better=False)

REGRESSION = Task(
  name='regression',
  loss=squared_error,
  metrics=(_RMSE, _R2, _LOSS),
  targets=targets,
  target_dtype=np.float32,
  outputs='targets',
  has_classes=False,
  count_outputs=lambda y: y.shape[1],
  output_shape=lambda count, _, num_targets: (count, num_targets),
  target_shape=lambda count, _, num_targets: (count, num_targets),
  measure=_measure,
  add=_add,
  num_measured=lambda errors: np.asarray(errors.count, np.float64),
  by_client=_client_metrics,
  micro=_micro,
  mix=_mix,
  predict=lambda outputs: outputs,
)

# Of models with another loss, which ranks them.
OWN_LOSS = REGRESSION._replace(
  name='regression, own loss',
  metrics=(_LOSS, _RMSE, _R2),
  by_client=lambda errors: _without_loss(_client_metrics(errors)),
  micro=lambda errors: _without_loss(_micro(errors)),
)


def _without_loss(metrics: dict[str, Any]) -> dict[str, Any]:
  return {name: value for name, value in metrics.items() if name != _LOSS.name}
