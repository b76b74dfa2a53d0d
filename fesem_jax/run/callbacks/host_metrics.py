"""Metrics over all examples of a client or a cluster, as functions of the host."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.attacks import honest
from fesem_jax.run.callbacks.callback import Callback, Event
from fesem_jax.run.results.deployed_models import DeployedModels
from fesem_jax.tasks import Task
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import checked


class HostMetrics(Callback):
  """Adds metrics that need all examples at once, such as AUC, to every evaluation.

  A metric is a function of the host, (y, p) -> a number, with the test targets and what
  the deployed models make of the test examples, as scikit-learn's: of several clients,
  their examples one after the other. The record gets `NAME`, over the examples of all
  clients; `NAME_macro`, the mean over clients; and, for methods with clusters,
  `NAME_by_cluster`, a number for each over the examples of its clients. The summary
  contains those of the last evaluation, and the clients' table a column `NAME`. Bad
  clients are in the table alone. A metric that raises `ValueError` for a client or
  cluster, as AUC of a single class, or returns NaN, has no value there (NaN, in files
  null), and is not in the mean.

  Args:
    metrics: name -> function, e.g. `{'auc': sklearn.metrics.roc_auc_score}`. Of T
      examples of L classes, y is [T] int32, and p as `given` says; for other tasks, see
      `FederatedData.y` and `DeployedModels.predict`.
    given: what p is: 'probabilities' [T, L] (of one or two classes [T], of the second
      one), 'predictions' [T], or 'outputs' [T, L] of the models.
  """

  @checked
  def __init__(
    self,
    metrics: Mapping[str, Callable[[np.ndarray, np.ndarray], float]],
    given: Literal['probabilities', 'predictions', 'outputs'] = 'probabilities',
  ):
    self._metrics, self._given = dict(metrics), given
    self._columns = dict[str, np.ndarray]()

  def on_start(self, event: Event) -> None:
    """Keeps the task; raises `UserError` if it has no probabilities."""
    self._task = event.algorithm.local.model.task
    self._split: FederatedData | None = None
    self._host: FederatedData | None = None
    has_input = self._given != 'probabilities' or self._task.probabilities is not None
    check(has_input, f'given: a {self._task.name} has no probabilities')

  def on_round(self, event: Event) -> None:
    """Computes the metrics of the deployed models of an evaluated round."""
    if event.measured is None:
      return
    if event.arranged.test is not self._split:  # Data may change over rounds.
      self._split = event.arranged.test
      self._host = jax.tree.map(processes.on_host, self._split)
    assert self._host is not None
    examples = [self._host.client(i) for i in event.arranged.places]
    targets = [y for _, y in examples]
    outputs = predictions(event.models, [x for x, _ in examples], self._given)
    counts, kept = np.ones(len(targets), bool), honest(event.arranged.train)
    if kept is not None:
      counts = kept[event.arranged.places]
    for name, metric in self._metrics.items():
      own = np.array([
        self._value(name, metric, *pair) for pair in zip(targets, outputs, strict=True)
      ])  # fmt: skip
      whole = np.flatnonzero(counts)
      event.record[name] = self._over(
        name, metric, [targets[i] for i in whole], [outputs[i] for i in whole]
      )
      known = own[~np.isnan(own) & counts]
      event.record[f'{name}_macro'] = float(known.mean()) if len(known) else np.nan
      self._columns[name] = own
      if event.assignment is None:
        continue
      clusters = range(event.measured.num_models)
      members = [np.flatnonzero((event.assignment == k) & counts) for k in clusters]
      event.record[f'{name}_by_cluster'] = [
        self._over(name, metric, [targets[i] for i in m], [outputs[i] for i in m])
        for m in members
      ]

  def on_end(self, event: Event) -> None:
    """Adds the last evaluation's values to the summary, and columns of clients."""
    event.columns.update(self._columns)
    last = event.result.history[-1] if event.result else {}
    for name in self._metrics:
      for entry in (name, f'{name}_macro', f'{name}_by_cluster'):
        if entry in last:
          event.summary[entry] = last[entry]

  def _over(
    self, name: str, metric: Any, targets: list[np.ndarray], outputs: list[np.ndarray]
  ) -> float:
    """The metric over the examples of several clients."""
    if not sum(map(len, targets)):
      return np.nan
    return self._value(name, metric, np.concatenate(targets), np.concatenate(outputs))

  def _value(self, name: str, metric: Any, y: np.ndarray, outputs: np.ndarray) -> float:
    if not len(y):
      return np.nan
    try:
      return float(metric(y, outputs))
    except ValueError:  # As AUC of a single class.
      return np.nan


def predictions(
  models: DeployedModels, examples: list[np.ndarray], given: str
) -> list[np.ndarray]:
  """Outputs of each client's deployed model on its examples.

  Clients of one model are asked together.
  """
  task, names = models.task, models.names
  alone = bool(models.own) or models.mixture is not None
  choice = np.zeros(len(names), int) if models.choice is None else models.choice
  groups = [[i] for i in range(len(names))]
  if not alone:
    groups = [np.flatnonzero(choice == k).tolist() for k in range(models.num_models)]
  by_client: list[np.ndarray] = [np.zeros(0)] * len(names)
  for group in filter(None, groups):
    x = np.concatenate([examples[i] for i in group])
    outputs = models.outputs(x, client=str(names[group[0]]))
    ends = np.cumsum([len(examples[i]) for i in group])[:-1]
    for i, part in zip(group, np.split(_as(outputs, task, given), ends), strict=True):
      by_client[i] = part
  return by_client


def _as(outputs: np.ndarray, task: Task, given: str) -> np.ndarray:
  if given == 'outputs':
    return outputs
  if given == 'predictions' or task.probabilities is None:
    return task.predict(outputs)
  shares = task.probabilities(outputs)
  # scikit-learn takes the score of the second class alone.
  return shares[..., -1] if shares.ndim == 2 and shares.shape[1] <= 2 else shares
