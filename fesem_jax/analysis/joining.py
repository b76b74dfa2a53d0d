"""Rules by which clients that were not in training join a cluster (Section 8)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fesem_jax.core import placement, prng_streams, sharding, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.arrangement import arrange, order_of_clients, ordered
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining, local_training
from fesem_jax.core.sampling import everyone
from fesem_jax.core.types import Model, Params
from fesem_jax.data import first_examples
from fesem_jax.evaluation import evaluate
from fesem_jax.evaluation.agreement import contingency
from fesem_jax.models.starting import trained_part
from fesem_jax.run.results.result import Run
from fesem_jax.server import em
from fesem_jax.training.client_losses import cohort_losses
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import checked

Rule = Literal['weights', 'loss']
RULES = get_args(Rule)
ALL = 'all'  # The number of examples of a client that has all.
Row = dict[str, Any]  # Of a seed, a number of examples and a rule.


@checked
def join(
  run: Run, data: FederatedData, rule: Rule = 'loss', local: LocalTraining | None = None
) -> np.ndarray:
  """Clusters of a finished run that new clients join (Section 8).

  Args:
    run: from `load_run`, of a method with centers that are whole models.
    data: training split of M clients that took no part.
    rule: the center of least loss ('loss', IFCA's rule), or nearest to the model that a
      client trains from the mean of the centers ('weights', Eq. 8).
    local: how they train; only needed by 'weights'.

  Returns:
    [M] int cluster of each client, as `run.predict` takes it.

  Raises:
    UserError: if the run has no such centers, its model is unknown or `local` missing.
  """
  check(local or rule == 'loss', f'local: missing; clients train to join by {rule}')
  model = local.model if local else run.deployed.model
  check(model, 'model: not in config.json; pass the Model to load_run')
  assert model is not None
  local = local or local_training(model, optax.sgd(0.0))
  clusters, centers = used_centers(run, model)
  places = np.argsort(order_of_clients(local, data))
  (data,) = arrange(local, data)
  key = joining_keys(run.config.get('seed', 0))[0]
  centers, key = sharding.replicate((centers, key), local.mesh)
  return clusters[np.asarray(by_rules(local, centers, data, key)[rule])[places]]


def adapt(
  run: Run,
  local: LocalTraining,
  train: FederatedData,
  test: FederatedData,
  numbers: Sequence[int] = (5, 10, 20, 50, 0),
  *,
  truth: np.ndarray | None = None,
  data_placement: str = 'auto',
) -> list[Row]:
  """Metrics of new clients that join a finished run, or train alone.

  Args:
    run: from `load_run`, of a method with centers or a global model.
    local: how clients train.
    train: training split of clients that took no part.
    test: test split of the same clients.
    numbers: of training examples that a client has when it joins; 0 is all.
    truth: true cluster of each client of the run, if known.
    data_placement: see `simulate`.

  Returns:
    A row for each number and each rule of `RULES`, or 'global model', and 'alone':
    metrics of `joined` and of `finetuned` models, and `in_group`, the share of clients
    whose center has most clients of their true group.
  """
  run = dataclasses.replace(run, model=local.model)
  config, mesh, rows, groups = run.config, local.mesh, list[Row](), None
  rounds, (size, epochs, steps) = run.summary['rounds'], local.schedule
  start_local = local._replace(schedule=Schedule(size, rounds * epochs, rounds * steps))
  assigned = run.deployed.choice
  if assigned is not None:
    _, centers = used_centers(run, local.model)
    if truth is not None:
      most = contingency(assigned, truth).argmax(axis=1)
      groups = np.unique(truth)[most]
  else:
    params = trained_part(local.model, run.params())
    centers = jax.tree.map(lambda x: x[None], params)
  keys = sharding.replicate(joining_keys(config['seed']), mesh)
  centers = sharding.replicate(centers, mesh)
  on_host, _ = ordered(local, train, test)
  whole, test = arrange(local, train, test, data_placement=data_placement)
  count, clusters = len(whole.info.names), whole.info.clusters
  for number in numbers:
    part, joined, used = whole, {}, {'global model': ClientModels(centers)}
    if number:
      first_rows = first_examples(on_host, number, config['seed'])
      part = placement.place(first_rows, mesh, placement.of(whole))
    if assigned is not None:
      joined = by_rules(local, centers, part, keys[0])
      used = {rule: ClientModels(centers, joined[rule]) for rule in RULES}
    used['alone'] = train_alone(start_local, part, keys[1])
    for rule, models in used.items():
      totals = _evaluate(models, local, part, test, keys[2], config['finetune_epochs'])
      row: Row = {'seed': config['seed'], 'num_examples': number or ALL, 'rule': rule}
      row |= {'clients': count, 'in_group': None}
      for kind, sums in zip(('joined', 'finetuned'), totals, strict=False):
        row[kind] = evaluate.scores(jax.device_get(sums), local.model.measured_as)
      if rule in joined and clusters is not None and groups is not None:
        choice = np.asarray(joined[rule])[:count]
        row['in_group'] = float((groups[choice] == clusters).mean())
      rows.append(row)
  return rows


@jax.jit(static_argnums=0)
def train_alone(
  local: LocalTraining, data: FederatedData, key: jax.Array
) -> ClientModels:
  """Trains every client by itself, from one random model, at the full learning rate."""
  model_key, key = jax.random.split(key)
  start = ClientModels(tree.expand(local.model.init(model_key)))
  local = local._replace(dropout_rate=0.0, sends=None, local_lr_schedule=None)
  trained = train_cohort(local, start, data, everyone(data), key)
  return ClientModels(personal=trained.params)


_evaluate = jax.jit(evaluate.evaluate_clients, static_argnums=(1, 5))


def joining_keys(seed: int) -> jax.Array:
  """[3] keys of joining, of training alone and of fine-tuning new clients."""
  key = prng_streams.fold(jax.random.key(seed), prng_streams.JOINING)
  return jax.random.split(key, 3)


def used_centers(run: Run, model: Model) -> tuple[np.ndarray, Params]:
  """[K] clusters that have clients; the part [K, ...] of their centers that trains."""
  deployed = run.deployed
  is_whole = deployed.choice is not None and deployed.mixture is None
  check(is_whole and not deployed.personal, f'{run.workdir}: has no centers to join')
  clusters = np.unique(np.asarray(deployed.choice))
  models = [trained_part(model, deployed.params(cluster=int(k))) for k in clusters]
  return clusters, jax.tree.map(lambda *layers: np.stack(layers), *models)


@jax.jit(static_argnums=0)
def by_rules(
  local: LocalTraining, centers: Params, data: FederatedData, key: jax.Array
) -> dict[str, jax.Array]:
  """[M] int32 center that each client joins, by each rule; ties go to the smallest."""
  # All train alike, without a penalty, from the mean of the centers, each of which
  # counts alike: the mean by clients is near the center of the largest cluster, which
  # all who train briefly would join.
  local = local._replace(dropout_rate=0.0)
  cohort = everyone(data)
  count = jax.tree.leaves(centers)[0].shape[0]
  mean = jax.tree.map(lambda c: c.mean(axis=0, keepdims=True), centers)
  # What a chunk needs of the centers has to come through the models to start from.
  models = jax.tree.map(lambda c, m: jnp.concatenate([c, m]), centers, mean)
  starts = ClientModels(models, jnp.full(data.num_clients, count, jnp.int32))

  def compare(trained, start, sums):
    centers = jax.tree.map(lambda x: x[:count], start.shared)
    return em.e_step(trained.params, centers)[0], sums

  reduction = Reduction(compare, keep=False)
  trained = train_cohort(local, starts, data, cohort, key, reduction)
  losses = cohort_losses(local, centers, data, cohort)
  by_loss = losses.argmin(axis=1).astype(jnp.int32)
  return {'weights': trained.folded, 'loss': by_loss}
