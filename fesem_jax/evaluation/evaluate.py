"""Accuracy and F1 of every client's model, and agreement of clusterings.

Models are measured on the device in counts per client and class; the figures
are computed from these counts on the host. Definitions: scikit-learn's.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.cohorts.sampling import client_keys
from fesem_jax.core import batching, client_map
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.batching import Schedule
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, FederatedData, Model, Params
from fesem_jax.evaluation.agreement import (
  adjusted_mutual_information,
  adjusted_rand_index,
  normalized_mutual_information,
)
from fesem_jax.models.mixture import as_one_model
from fesem_jax.training import shared_kernels
from fesem_jax.training.client_losses import EVALUATION_BATCH, cohort_losses
from fesem_jax.training.local_sgd import Terms, Work, train_chunk
from fesem_jax.utils.errors import UserError


class Counts(NamedTuple):
  """Outcome of classifying each client's examples.

  Attributes:
    correct: [M, L] int32 examples of each class that were classified right.
    predicted: [M, L] int32 examples classified as each class.
    actual: [M, L] int32 examples of each class.
    metrics: name -> [M] float32, sum over examples; see `Model.metrics`.
  """

  correct: jax.Array
  predicted: jax.Array
  actual: jax.Array
  metrics: dict[str, jax.Array] | None = None


def count_chunk(
  model: Model, params: Params, data: FederatedData, ids: jax.Array
) -> Counts:
  """Classifies all examples of C clients, each with its own model, in float32.

  Args:
    model: see `Model`.
    params: [C, ...].
    data: the split to measure on.
    ids: [C] int32.

  Returns:
    `Counts` with leading axis C.
  """
  sizes = data.sizes(ids)
  width = min(EVALUATION_BATCH, data.max_examples)
  in_order = jnp.arange(data.max_examples, dtype=jnp.int32)

  def count(params, client, size, step):
    rows, weights = batching.batch_rows(in_order, step, size, width)
    x, y = batching.gather(data, client, rows)
    with jax.default_matmul_precision('highest'):
      logits = model.apply(params, x)
    guess = logits.argmax(axis=-1)
    metrics = {
      name: jnp.where(weights > 0, metric(logits, y), 0.0).sum()
      for name, metric in model.metrics
    }
    weights = weights.astype(jnp.int32)

    def tally(labels, w):
      return jnp.zeros(data.num_classes, jnp.int32).at[labels].add(w)

    correct = tally(y, weights * (guess == y))
    return Counts(correct, tally(guess, weights), tally(y, weights), metrics)

  each = client_map.map_one_or_many(count, ids.shape[0])

  def body(step, total):
    steps = jnp.broadcast_to(step, ids.shape)
    return jax.tree.map(jnp.add, total, each(params, ids, sizes, steps))

  none = jnp.zeros((ids.shape[0], data.num_classes), jnp.int32)
  metrics = {name: jnp.zeros(ids.shape[0]) for name, _ in model.metrics}
  nothing = Counts(none, none, none, metrics)
  return jax.lax.fori_loop(0, (sizes.max() + width - 1) // width, body, nothing)


def models_of_unseen(
  used: ClientModels, exists: jax.Array, local: LocalTraining, train: FederatedData
) -> ClientModels:
  """What clients use that took no part in training.

  Each takes, of the models that others deploy, the one with the least loss on its
  training examples; test examples are not looked at.

  Args:
    used: global model or centers, and who uses which; nothing of a client's own.
    exists: [M] bool, False for padding among those clients.
    local: how clients train.
    train: training split of the unseen clients.
  """
  num_models, chosen = used.num_models(), used.clusters()
  everyone = jnp.arange(train.num_clients, dtype=jnp.int32)
  losses = cohort_losses(local, used.shared, train, Cohort(everyone, everyone=True))
  if chosen is not None:
    users = jnp.bincount(jnp.where(exists, chosen, num_models), length=num_models)
    losses = jnp.where(users > 0, losses, jnp.inf)
  return ClientModels(used.shared, losses.argmin(axis=1).astype(jnp.int32))


def evaluate_clients(
  used: ClientModels,
  local: LocalTraining,
  train: FederatedData,
  test: FederatedData,
  key: jax.Array,
  finetune_epochs: int,
) -> tuple[Counts, Counts, jax.Array]:
  """Measures every client's deployed model, as it is and fine-tuned.

  Fine-tuning is local training without any penalty, with the batch size and the
  optimizer of `local`, plain SGD by default (Section 6.1: "sent to each device
  for further fine-tuning with local training data"). Models exist only chunk by
  chunk.

  Args:
    used: the models that clients deploy.
    local: how clients train.
    train: training split, for fine-tuning.
    test: split to measure on, of the same clients.
    key: decides the order of examples in fine-tuning.
    finetune_epochs: 0 leaves the models as they are.

  Returns:
    `Counts` of the deployed and of the fine-tuned models; and [M] bool, clients
    whose fine-tuning was not finite: their fine-tuned model is the deployed one.
  """
  model, used, layers = as_one_model(local.model, used)
  ids = jnp.arange(test.num_clients, dtype=jnp.int32)
  schedule = Schedule(local.schedule.batch_size, epochs=finetune_epochs)
  tuning = local._replace(model=model, schedule=schedule)
  if finetune_epochs == 0:
    tuning = tuning._replace(shared_start='off')
  kernels, together = shared_kernels.choose(
    tuning, used, train, test.num_clients, layers
  )
  steps = batching.num_steps(schedule, jnp.asarray(train.sizes()), train.max_examples)

  def body(chunk, shared, _):
    steps, of_chunk = chunk.own
    models, train, test, key = shared
    count = chunk.ids.shape[0]
    start = of_chunk._replace(shared=models)
    if finetune_epochs == 0:
      deployed = count_chunk(model, start.params(count), test, chunk.ids)
      return (deployed, deployed, jnp.zeros(count, bool)), None
    steps = jnp.where(train.sizes(chunk.ids) > 0, steps, 0)
    keys = client_keys(key, train, chunk.ids)
    exist = chunk.ids < test.num_clients
    rest, start_together = shared_kernels.split(tuning, start, kernels, exist)
    ends = train_chunk(
      tuning,
      train,
      rest.params(count),
      Work(chunk.ids, steps, keys),
      shared=start_together,
      terms=Terms(layers=layers),
    )

    def measure(clients, _):
      ids, of_clients, ends = clients
      params = of_clients._replace(shared=models).params(ids.shape[0])
      tuned = start_together.models(ends.params, ends.changes, ends.finite)
      deployed = count_chunk(model, params, test, ids)
      return (deployed, count_chunk(model, tuned, test, ids), ~ends.finite), None

    clients = chunk.ids, of_chunk, ends
    return client_map.in_parts(measure, clients, local.clients_per_chunk, exist=exist)

  counts, _ = client_map.map_clients(
    body,
    ids,
    steps + (test.sizes(ids) + EVALUATION_BATCH - 1) // EVALUATION_BATCH,
    (steps, used._replace(shared=None)),
    (used.shared, train, test, key),
    empty=test.num_clients,
    mesh=local.mesh,
    clients_per_chunk=together,
    group=used.choice if kernels else None,
    num_groups=used.num_models(),
  )
  return counts


class Scores(NamedTuple):
  """Figures over clients, fractions in [0, 1] (Section 6.1.5).

  "Micro" weighs each client's figure by its number of examples, "macro" weighs
  all clients alike. Clients without examples are left out.

  Attributes:
    micro_accuracy: share of all examples classified right.
    macro_accuracy: mean over clients of each client's share.
    micro_f1: F1 of each client, weighted by its examples.
    macro_f1: plain mean of the clients' F1.
  """

  micro_accuracy: float
  macro_accuracy: float
  micro_f1: float
  macro_f1: float


def client_scores(counts: Counts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Each client's number of examples, accuracy and F1: [M], [M], [M] float64.

  F1 is scikit-learn's `f1_score(average='macro', zero_division=0)` over the
  labels that occur among the client's true or predicted ones. Clients without
  examples get NaN.
  """
  correct, predicted, actual = (np.asarray(c, np.float64) for c in counts[:3])
  size = actual.sum(axis=1)
  either = predicted + actual
  occurs = either > 0
  with np.errstate(invalid='ignore'):
    f1 = np.where(occurs, 2 * correct / np.where(occurs, either, 1), 0)
    return size, correct.sum(axis=1) / size, f1.sum(axis=1) / occurs.sum(axis=1)


def client_metrics(counts: Counts) -> dict[str, np.ndarray]:
  """Name of each of the model's own metrics -> [M] float64, each client's mean.

  Clients without examples get NaN.
  """
  size = np.asarray(counts.actual, np.float64).sum(axis=1)
  with np.errstate(invalid='ignore'):
    found = (counts.metrics or {}).items()
    return {name: np.asarray(total, np.float64) / size for name, total in found}


def check_metrics(model: Model) -> None:
  """Raises `UserError` if metrics of a model share their names with other figures."""
  names = [name for name, _ in model.metrics]
  taken = {'accuracy', 'f1'}
  for i, name in enumerate(names):
    if name in taken or name in names[:i]:
      raise UserError(
        f'The metric {name!r} of the model has the name of another figure that is '
        'measured; give it a name of its own.'
      )


def scores(counts: Counts) -> Scores:
  """The four figures; NaN if no client has test examples."""
  return mean_scores(*client_scores(counts))


def scores_by_name(counts: Counts) -> dict[str, float]:
  """The four figures by name, and `micro_NAME` and `macro_NAME` of each metric."""
  size = np.asarray(counts.actual, np.float64).sum(axis=1)
  found = scores(counts)._asdict()
  for name, own in client_metrics(counts).items():
    found |= mean_metric(name, size, own)
  return found


def mean_metric(name: str, size: np.ndarray, own: np.ndarray) -> dict[str, float]:
  """`micro_NAME` and `macro_NAME` of a metric, from that of each client."""
  size, own = size[size > 0], own[size > 0]
  if not len(size):
    return dict.fromkeys((f'micro_{name}', f'macro_{name}'), float('nan'))
  return {
    f'micro_{name}': float(np.average(own, weights=size)),
    f'macro_{name}': float(own.mean()),
  }


def mean_scores(size: np.ndarray, accuracy: np.ndarray, f1: np.ndarray) -> Scores:
  """The four figures from those of each client, as `client_scores` gives them."""
  kept = size > 0
  if not kept.any():
    return Scores(*[float('nan')] * 4)
  size, accuracy, f1 = size[kept], accuracy[kept], f1[kept]
  return Scores(
    micro_accuracy=float(np.average(accuracy, weights=size)),
    macro_accuracy=float(accuracy.mean()),
    micro_f1=float(np.average(f1, weights=size)),
    macro_f1=float(f1.mean()),
  )


def agreement(
  truth: np.ndarray | None, assignment: np.ndarray
) -> dict[str, float | None]:
  """ARI, NMI and AMI of an assignment with the true clusters; None without truth.

  Args:
    truth: [M] int or names, or None.
    assignment: [M] int.
  """
  if truth is None:
    return {'ari': None, 'nmi': None, 'ami': None}
  return {
    'ari': adjusted_rand_index(truth, assignment),
    'nmi': normalized_mutual_information(truth, assignment),
    'ami': adjusted_mutual_information(truth, assignment),
  }
