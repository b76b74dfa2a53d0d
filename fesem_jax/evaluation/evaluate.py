"""Metrics of every client's model, and agreement of clusterings.

The device sums over each client's examples; the host computes metrics from the sums, as
scikit-learn defines them, except the RMSE of several targets.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import batching, client_map, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import everyone
from fesem_jax.core.types import Cohort, Model, Params
from fesem_jax.evaluation.agreement import scores as agreement_scores
from fesem_jax.models.mixture import as_one_model, optimizer_of
from fesem_jax.tasks import OWN_LOSS, Loss, Metric, Task
from fesem_jax.training.by_batches import evaluation_width
from fesem_jax.training.client_losses import cohort_losses
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.one_client import where
from fesem_jax.training.trained import Reduction
from fesem_jax.utils.errors import check


class Totals(NamedTuple):
  """Sums of each client's examples under its model."""

  examples: jax.Array  # [M] int examples of each client
  sums: Any  # from which the metrics of the task follow; see `Task.measure`
  # Name -> [M] float32, sum over examples; see `Model.metrics`.
  metrics: dict[str, jax.Array]
  loss: jax.Array  # [M] float32, sum over examples of the model's own


def measure_chunk(
  model: Model, params: Params, data: FederatedData, ids: jax.Array
) -> Totals:
  """[C] `Totals` of models [C, ...] of clients `ids` [C] on all their examples."""
  sizes = data.sizes(ids)
  width = evaluation_width(data.max_examples)

  def measure(params, client, size, step):
    rows, weights = batching.batch_places(step, size, width)
    x, y = batching.gather(data, client, rows)
    with jax.default_matmul_precision('highest'):
      outputs = model.apply(params, x)

    def total(metric: Loss) -> jax.Array:
      return jnp.where(weights > 0, metric(outputs, y), 0.0).sum()

    metrics = {name: total(metric) for name, metric in model.metrics}
    sums = model.task.measure(outputs, y, weights, data.num_classes)
    examples = weights.sum().astype(jnp.int32)
    return Totals(examples, sums, metrics, total(model.loss))

  measure_all = client_map.side_by_side(measure, ids.shape[0])

  def body(step, total):
    new = measure_all(params, ids, sizes, jnp.broadcast_to(step, ids.shape))
    return Totals(
      total.examples + new.examples,
      model.task.add(total.sums, new.sums),
      jax.tree.map(jnp.add, total.metrics, new.metrics),
      total.loss + new.loss,
    )

  shapes = jax.eval_shape(measure_all, params, ids, sizes, jnp.zeros_like(ids))
  nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
  num_batches = batching.batches_per_epoch(sizes, width).max()
  totals = jax.lax.fori_loop(0, num_batches, body, nothing)
  return _narrowed(totals, data.max_examples * math.prod(data.y.shape[1:]))


def _narrowed(totals: Totals, most: int) -> Totals:
  dtype = np.min_scalar_type(most)

  def narrowed(x: jax.Array) -> jax.Array:
    whole = jnp.issubdtype(x.dtype, jnp.integer)
    return x.astype(dtype) if whole and dtype.itemsize < x.dtype.itemsize else x

  return jax.tree.map(narrowed, totals)


def models_of_unseen(
  deployed: ClientModels, exists: jax.Array, local: LocalTraining, train: FederatedData
) -> ClientModels:
  """Models of new clients: the deployed ones of least loss on their examples `train`.

  `deployed` are a global model or centers; `exists` [M] bool is False for padding.
  """
  num_models, choices = deployed.num_models(), deployed.clusters()
  losses = cohort_losses(local, deployed.shared, train, everyone(train))
  if choices is not None:
    users = jnp.bincount(jnp.where(exists, choices, num_models), length=num_models)
    losses = jnp.where(users > 0, losses, jnp.inf)
  return ClientModels(deployed.shared, losses.argmin(axis=1).astype(jnp.int32))


def evaluate_clients(
  deployed: ClientModels,
  local: LocalTraining,
  train: FederatedData,
  test: FederatedData,
  key: jax.Array,
  finetune_epochs: int,
) -> tuple[Totals, Totals, jax.Array]:
  """Measures every client's deployed model, as it is and fine-tuned.

  Fine-tuning is local training on `train` without any penalty, with the batch size and
  the optimizer of `local` (Section 6.1 of Long et al.); 0 epochs leave it out.

  Returns `Totals` on `test` of the deployed and of the fine-tuned models; and [M] bool,
  clients whose fine-tuning was not finite: their fine-tuned model is the deployed one.
  """
  model, deployed, layers = as_one_model(local.model, deployed)
  deployed = deployed._replace(membership=None)
  if finetune_epochs == 0:
    ids = jnp.arange(test.num_clients, dtype=jnp.int32)
    totals = _deployed_totals(model, deployed, local, test, ids)
    return totals, totals, jnp.zeros(test.num_clients, bool)
  tuning = local._replace(
    model=model,
    optimizer=optimizer_of(local.optimizer, layers),
    schedule=Schedule(local.schedule.batch_size, epochs=finetune_epochs),
    dropout_rate=0.0,
    sends=None,
  )

  def measure(trained, starts, _, test):
    deployed = starts.params(trained.ids.shape[0])

    def totals(is_tuned):
      params = where(is_tuned, trained.params, deployed)
      return measure_chunk(model, params, test, trained.ids)

    both = jax.lax.map(totals, jnp.array([False, True]))  # Compiled once.
    measured = [tree.unstack(both, i) for i in range(2)]
    return (*measured, ~trained.finite), None

  reduction = Reduction(measure, broadcast=test, keep=False, sent='nothing')
  return train_cohort(
    tuning, deployed, train, everyone(train), key, reduction, layers=layers
  ).folded


def mean_losses(
  deployed: ClientModels, local: LocalTraining, data: FederatedData, cohort: Cohort
) -> jax.Array:
  """[S] float32 mean loss on `data` of each client's deployed model; 0 if empty."""
  model, deployed, _ = as_one_model(local.model, deployed)
  deployed = deployed._replace(membership=None).of(cohort)
  totals = _deployed_totals(model, deployed, local, data, cohort.ids)
  return totals.loss / jnp.maximum(totals.examples, 1)


def _deployed_totals(
  model: Model,
  deployed: ClientModels,
  local: LocalTraining,
  test: FederatedData,
  ids: jax.Array,
) -> Totals:
  def body(shared, ids, personal, _, sums):
    models, test = shared
    params = personal._replace(shared=models).params(ids.shape[0])
    return measure_chunk(model, params, test, ids), sums

  totals, _ = client_map.map_clients(
    body,
    ids,
    test.sizes(ids),
    deployed._replace(shared=None),
    (deployed.shared, test),
    per_chunk=local.clients_per_chunk,
    empty=test.num_clients,
    mesh=local.mesh,
  )
  return totals


def client_metrics(totals: Totals, task: Task) -> dict[str, np.ndarray]:
  """Name of each metric -> [M] float64, NaN for clients with nothing to measure."""
  measured = task.num_measured(totals.sums) > 0
  means = _means(totals, {'loss': totals.loss} if task is OWN_LOSS else {})
  metrics = task.by_client(totals.sums) | means
  return {name: np.where(measured, values, np.nan) for name, values in metrics.items()}


def _means(totals: Totals, others: dict[str, Any]) -> dict[str, np.ndarray]:
  """[M] float64 means over each client's examples of some sums and of all metrics."""
  size = np.asarray(totals.examples, np.float64)
  with np.errstate(invalid='ignore'):
    return {
      name: np.asarray(total, np.float64) / size
      for name, total in (others | totals.metrics).items()
    }


def check_metrics(model: Model) -> None:
  """Raises `UserError` if metrics of a model share their names with others."""
  names = [*{'loss', *(metric.name for metric in model.task.metrics)}]
  names += [name for name, _ in model.metrics]
  repeated = [name for name in names if names.count(name) > 1]
  name = ''.join(repeated[-1:])
  check(
    not repeated, f'metrics: {name!r} is the name of another metric; choose another'
  )


def scores(totals: Totals, task: Task) -> dict[str, float]:
  """Metrics over clients (Section 6.1.5 of Long et al.); NaN without examples.

  "Micro" is over all examples, for F1 the mean of the clients' F1 by their examples,
  "macro" the mean over the clients with something to measure: of the task, of the
  model's metrics and of its loss; then the `pooled_NAME` of the task.
  """
  client_values, micro = client_metrics(totals, task), task.micro(totals.sums)
  size = np.asarray(totals.examples, np.float64)
  measured = task.num_measured(totals.sums) > 0
  # The squared error of regression follows from its sums.
  loss = {} if 'loss' in micro else {'loss': totals.loss}

  def macro(values: np.ndarray, exists: np.ndarray) -> float:
    return float(values[exists].mean()) if exists.any() else float('nan')

  def with_metric(metric: Metric) -> np.ndarray:
    return measured & ~(np.isnan(client_values[metric.name]) & metric.may_lack)

  names = [metric.name for metric in task.metrics]
  metrics = {f'micro_{name}': micro.get(name, float('nan')) for name in names}
  metrics |= {
    f'macro_{f.name}': macro(client_values[f.name], with_metric(f))
    for f in task.metrics
  }
  for name, values in _means(totals, loss).items():
    metrics[f'micro_{name}'] = float('nan')
    if measured.any():
      average = np.average(values[measured], weights=size[measured])
      metrics[f'micro_{name}'] = float(average)
    metrics[f'macro_{name}'] = macro(values, measured)
  return metrics | task.pooled(totals.sums)


def agreement(
  truth: np.ndarray | None, assignment: np.ndarray
) -> dict[str, float | None]:
  """ARI, NMI and AMI of an assignment with the true clusters; None without truth."""
  if truth is None:
    return {'ari': None, 'nmi': None, 'ami': None}
  return {**agreement_scores(truth, assignment)}
