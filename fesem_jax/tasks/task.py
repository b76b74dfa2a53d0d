"""A task as one value: its loss, its metrics and their direction."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# (Outputs [B, ...], targets y [B, ...]) -> [B] float32, one number for each example.
Loss = Callable[[jax.Array, jax.Array], jax.Array]

# Sums over a client's examples from which its metrics follow, a tree of arrays.
Sums = Any


class Metric(NamedTuple):
  """A metric of a task."""

  name: str  # as in records and columns, e.g. 'rmse'
  label: str  # as in sentences and figures, e.g. 'RMSE'
  heading: str  # as in tables, e.g. 'acc'
  percent: bool  # whether tables and plots multiply it by 100
  higher_is_better: bool  # which of two models it prefers
  may_lack: bool = False  # whether clients without it are left out of means

  @property
  def factor(self) -> float:
    """The factor of its values in tables and plots."""
    return 100.0 if self.percent else 1.0

  @property
  def title(self) -> str:
    """Its name for the axis of a plot, with the unit."""
    return f'Micro {self.label} (%)' if self.percent else f'Micro {self.label}'

  @property
  def digits(self) -> int:
    """Digits behind the point in tables."""
    return 1 if self.percent else 3

  def better(self, value: float) -> float:
    """A number that is the larger the better the metric is; -inf for NaN."""
    if math.isnan(value):
      return -math.inf
    return value if self.higher_is_better else -value

  def target(self, value: float) -> str:
    """A value that was asked for, with all its digits, e.g. '97 %' or '0.5'."""
    return f'{self.factor * value:g}{" %" if self.percent else ""}'

  def text(self, value: float) -> str:
    """A value for a reader, e.g. '94.3%' or '0.523'."""
    return f'{100 * value:.1f}%' if self.percent else f'{value:.3g}'


def columns(names: Sequence[str]) -> tuple[str, ...]:
  """Names in records of some metrics: micro ones, then macro ones."""
  return (*(f'micro_{name}' for name in names), *(f'macro_{name}' for name in names))


def softmax(logits: np.ndarray) -> np.ndarray:
  """Probabilities of the outputs of the last axis."""
  return np.asarray(jax.nn.softmax(logits))


def add(a: Sums, b: Sums) -> Sums:
  """Sums of two sets of examples, where they are plain sums."""
  return jax.tree.map(jnp.add, a, b)


class Task(NamedTuple):
  """The kind of outputs that models are trained for.

  B is the number of examples of a batch, L that of classes, targets or tokens.

  Attributes:
    name: of the flag `--task`.
    loss: that clients minimize unless their model has another one.
    metrics: what is measured; the first one decides which of two models is better.
    targets: (y of any kind, its name in errors, L or None) -> y [T, ...]; raises
      `UserError`.
    target_dtype: of y.
    outputs: what errors call the L outputs, e.g. 'classes'.
    has_classes: whether a target is one of the L outputs.
    count_outputs: y -> L where the data do not say it.
    output_shape: (B, shape of one example, L) -> shape of the outputs of B examples.
    target_shape: (B, shape of one example, L) -> shape of their targets.
    measure: (outputs, y, weights [B] float32, L) -> `Sums` of the examples of weight 1.
    add: the sums of two sets of examples, from those of each.
    num_measured: sums [M, ...] on the host -> [M] float64 measured examples or tokens.
    by_client: the same sums -> name of each metric -> [M] float64, NaN where nothing is
      measured.
    micro: the same sums -> name of each metric -> its value over all examples.
    mix: (outputs [R, B, ...] of R models, log weights [R]) -> outputs [B, ...] of their
      mixture.
    predict: outputs [B, ...] on the host -> predictions.
    pooled: the same sums -> metrics of all examples that differ from micro ones.
    probabilities: outputs [B, ...] on the host -> probabilities, if the task has them.
  """

  name: str
  loss: Loss
  metrics: tuple[Metric, ...]
  targets: Callable[[Any, str, int | None], np.ndarray]
  target_dtype: type
  outputs: str
  has_classes: bool
  count_outputs: Callable[[np.ndarray], int]
  output_shape: Callable[[int, tuple[int, ...], int], tuple[int, ...]]
  target_shape: Callable[[int, tuple[int, ...], int], tuple[int, ...]]
  measure: Callable[[jax.Array, jax.Array, jax.Array, int], Sums]
  add: Callable[[Sums, Sums], Sums]
  num_measured: Callable[[Sums], np.ndarray]
  by_client: Callable[[Sums], dict[str, np.ndarray]]
  micro: Callable[[Sums], dict[str, float]]
  mix: Callable[[jax.Array, jax.Array], jax.Array]
  predict: Callable[[np.ndarray], np.ndarray]
  probabilities: Callable[[np.ndarray], np.ndarray] | None = None
  pooled: Callable[[Sums], dict[str, float]] = lambda sums: {}

  @property
  def primary(self) -> Metric:
    """The metric that decides which of two models is better."""
    return self.metrics[0]

  @property
  def columns(self) -> tuple[str, ...]:
    """Names of the metrics in records: micro ones, then macro ones."""
    return columns([metric.name for metric in self.metrics])

  @property
  def primary_column(self) -> str:
    """Name in records of the metric that decides."""
    return f'micro_{self.primary.name}'
