"""Accuracy and F1 of every client's model, and agreement of clusterings.

Models are measured on the device in counts per client and class; the figures
are computed from these counts on the host. Definitions: scikit-learn's.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import metrics as sklearn_metrics

from fesem_jax import batching, sharding, tree
from fesem_jax.base import Cohort, Deployed, FederatedData, Model, Params
from fesem_jax.batching import Schedule
from fesem_jax.local import (
  EVALUATION_BATCH,
  LocalTraining,
  client_keys,
  cohort_losses,
  train_chunk,
)


class Counts(NamedTuple):
  """Outcome of classifying each client's examples.

  Attributes:
    correct: [M, L] int32 examples of each class that were classified right.
    predicted: [M, L] int32 examples classified as each class.
    actual: [M, L] int32 examples of each class.
  """

  correct: jax.Array
  predicted: jax.Array
  actual: jax.Array


def count_chunk(
  model: Model, params: Params, data: FederatedData, ids: jax.Array
) -> Counts:
  """Classifies all examples of C clients, each with its own model.

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
    guess = model.apply(params, x).argmax(axis=-1)
    weights = weights.astype(jnp.int32)
    tally = lambda labels, w: jnp.zeros(data.num_classes, jnp.int32).at[labels].add(w)
    return Counts(
      tally(y, weights * (guess == y)), tally(guess, weights), tally(y, weights)
    )

  each = sharding.map_one_or_many(count, ids.shape[0])

  def body(step, total):
    steps = jnp.broadcast_to(step, ids.shape)
    return jax.tree.map(jnp.add, total, each(params, ids, sizes, steps))

  nothing = Counts(*(jnp.zeros((ids.shape[0], data.num_classes), jnp.int32),) * 3)
  return jax.lax.fori_loop(0, (sizes.max() + width - 1) // width, body, nothing)


def models_of_unseen(
  used: Deployed, exists: jax.Array, local: LocalTraining, train: FederatedData
) -> Deployed:
  """What clients use that took no part in training.

  Each takes, of the models that others deploy, the one with the least loss on its
  training examples; test examples are not looked at.

  Args:
    used: global model or centers, and who uses which.
    exists: [M] bool, False for padding among those clients.
    local: how clients train.
    train: training split of the unseen clients.
  """
  num_models = jax.tree.leaves(used.models)[0].shape[0]
  rows = used.rows(jnp.arange(exists.shape[0], dtype=jnp.int32))
  users = jnp.bincount(jnp.where(exists, rows, num_models), length=num_models)
  everyone = jnp.arange(train.num_clients, dtype=jnp.int32)
  losses = cohort_losses(local, used.models, train, Cohort(everyone, everyone=True))
  losses = jnp.where(users > 0, losses, jnp.inf)
  return Deployed(used.models, row=losses.argmin(axis=1).astype(jnp.int32))


def evaluate_clients(
  used: Deployed,
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
  models, own = used.models, used.row is None
  ids = jnp.arange(test.num_clients, dtype=jnp.int32)
  schedule = Schedule(local.schedule.batch_size, epochs=finetune_epochs)
  tuning = local._replace(schedule=schedule)
  sizes = jnp.asarray(train.sizes())
  steps = batching.num_steps(schedule, sizes, train.max_examples)

  def on_device(per_client, models, train, test, key):
    ids, steps, start = per_client

    def chunk(slots, _, __):
      chunk_ids, params = tree.take((ids, start), slots)
      chunk_steps = steps.at[slots].get(mode='fill', fill_value=0)
      params = params if own else tree.take(models, params)
      deployed = count_chunk(local.model, params, test, chunk_ids)
      if finetune_epochs == 0:
        return (deployed, deployed, jnp.zeros(slots.shape, bool)), None
      keys = client_keys(key, train, chunk_ids)
      tuned, _, finite = train_chunk(
        tuning, train, params, chunk_ids, chunk_steps, keys, None, None
      )
      return (deployed, count_chunk(local.model, tuned, test, chunk_ids), ~finite), None

    work = steps + (test.sizes(ids) + EVALUATION_BATCH - 1) // EVALUATION_BATCH
    return sharding.map_chunks(chunk, work, local.clients_per_chunk)

  counts, _ = sharding.per_device(on_device, local.mesh, 1)(
    (ids, steps, models if own else used.rows(ids)),
    None if own else models,
    train,
    test,
    key,
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
  correct, predicted, actual = (np.asarray(c, np.float64) for c in counts)
  size = actual.sum(axis=1)
  either = predicted + actual
  occurs = either > 0
  with np.errstate(invalid='ignore'):
    f1 = np.where(occurs, 2 * correct / np.where(occurs, either, 1), 0)
    return size, correct.sum(axis=1) / size, f1.sum(axis=1) / occurs.sum(axis=1)


def scores(counts: Counts) -> Scores:
  """The four figures; NaN if no client has test examples."""
  size, accuracy, f1 = client_scores(counts)
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
  """ARI and NMI of an assignment with the true clusters; None without truth.

  Args:
    truth: [M] int, or None.
    assignment: [M] int.
  """
  if truth is None:
    return {'ari': None, 'nmi': None}
  return {
    'ari': float(sklearn_metrics.adjusted_rand_score(truth, assignment)),
    'nmi': float(sklearn_metrics.normalized_mutual_info_score(truth, assignment)),
  }
