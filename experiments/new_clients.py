"""Finished runs whose clients of --unseen_fraction can still join."""

import dataclasses
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np

from fesem_jax.analysis.joining_rules import groups_of_clusters
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Model, Params
from fesem_jax.models.starting import trained_part
from fesem_jax.run.results.saved_run import Run, load_run
from fesem_jax.utils.errors import UserError, check

from . import flags as experiment_flags
from .build import build_model, data_of_run

# What two runs must share to have the same clients and models, beside data.
_SAME_CLIENTS = (
  'model', 'model_options', 'hidden', 'evaluate_on', 'unseen_fraction', 'train_layers',
  'freeze_layers',
)  # fmt: skip
# And where some layers do not train, so that these are the same.
_SAME_START = ('initializer', 'init_from', 'init_layers', 'init_digest')


class NewClients(NamedTuple):
  """A finished run of a clustered method, and the clients that took no part in it."""

  run: Run
  model: Model  # of every client
  centers: Params  # [K, ...] the centers that clients of the run deploy
  # [K] true group of most of each center's clients; None where none is known.
  groups: np.ndarray | None
  train: FederatedData  # training split of the new clients, on the host
  test: FederatedData  # test split of the same clients

  @property
  def config(self) -> dict[str, Any]:
    """The run's configuration as `run.run` takes it, with the rounds that were done."""
    config = self.run.config | {'rounds': self.run.summary['rounds']}
    return {k: v for k, v in config.items() if k not in ('data_digest', 'own_code')}


def load(workdir: pathlib.Path, data_dir: str) -> NewClients:
  """Reads a run, and sets the clients aside that it set aside."""
  run = load_run(workdir)
  _check(run)
  config = run.config
  train, _, *unseen = data_of_run(workdir, config, data_dir)
  model = build_model(config, train)
  run = dataclasses.replace(run, model=model)
  deployed = run.deployed
  joins = deployed.mixture is None and not deployed.own
  check(joins, f'{workdir}: a center of {config["algorithm"]} is no model to join')
  assert deployed.choice is not None  # There are clusters.
  in_use, assignment = np.unique(deployed.choice, return_inverse=True)
  whole = [deployed.params(cluster=int(k)) for k in in_use]
  centers = [trained_part(model, params) for params in whole]
  truth, groups = train.info.clusters, None
  if truth is not None:
    groups = groups_of_clusters(truth, assignment)
  stack = jax.tree.map(lambda *layers: np.stack(layers), *centers)
  return NewClients(run, model, stack, groups, *unseen)


def _check(run: Run) -> None:
  """Raises `UserError` unless new clients can join a run."""
  at, clustered = run.workdir, run.clients.cluster is not None
  check(clustered, f'{at}: has no centers to join; name a run of a clustered method')
  unseen = run.config['unseen_fraction']
  check(unseen, f'{at}: all clients took part; run it with unseen_fraction=0.2, say')


def check_one_configuration(runs: list[NewClients]) -> None:
  """Raises `UserError` unless runs are of one configuration and different seeds."""
  first = runs[0]
  # With --patience and --stop_after, seeds stop after different rounds.
  stops = first.config['patience'] or first.config.get('stop_after')
  but = ('seed', 'rounds') if stops else ('seed',)
  seeds = set[int]()
  for each in runs:
    if differing := _differing(first.config, each.config, but=but):
      raise UserError(f'{each.run.workdir}: differs in {", ".join(differing)}')
    seed = each.config['seed']
    check(seed not in seeds, f'{each.run.workdir}: seed {seed} is named twice')
    seeds.add(seed)


def global_model(workdir: pathlib.Path, clients: NewClients) -> Params:
  """The model of a finished run of FedAvg on the same clients, [1, ...]."""
  run = dataclasses.replace(load_run(workdir), model=clients.model)
  name = run.config['algorithm']
  check(name == 'fed_avg', f'global_run: {workdir} is of {name}; name one of fed_avg')
  names = (*experiment_flags.data_names(), *_SAME_CLIENTS, 'data_digest')
  if clients.config.get('train_layers') or clients.config.get('freeze_layers'):
    names += _SAME_START
  if differing := _differing(clients.run.config, run.config, only=names):
    raise UserError(f'global_run: {workdir} differs in {", ".join(differing)}')
  params = trained_part(clients.model, run.params())
  return jax.tree.map(lambda x: x[None], params)


def _differing(
  a: dict[str, Any],
  b: dict[str, Any],
  *,
  but: tuple[str, ...] = (),
  only: tuple[str, ...] = (),
) -> list[str]:
  """Differences of two configurations, as flags."""
  names = only or sorted((a.keys() | b.keys()) - set(but))
  return [
    'their data' if name == 'data_digest' else f'--{name}'
    for name in names
    if a.get(name) != b.get(name)
  ]
