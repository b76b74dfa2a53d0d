"""Whole runs on a small federation, which share their compiled programs."""

import functools
import json
import pathlib

import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.selection import counted
from fesem_jax.run.loop import run_many
from fesem_jax.run.simulation import run_one
from fesem_jax.run.spec import Spec
from tests.support import helpers

SIZES = [3, 9, 5, 14, 4, 7, 11]
TEST_SIZES = [5, 6, 0, 7, 8, 9, 4]
GROUPS = [0, 1, 0, 1, 0, 1, 0]
OPTIONS = {
  'fesem': {'num_clusters': 2},
  'hypo_cluster': {'num_clusters': 2, 'init_restarts': 3, 'init_rounds': 2},
}


def federation():
  """Training and test split of seven clients; client 2 has no test examples."""
  return (
    helpers.federation(SIZES, groups=GROUPS),
    helpers.federation(TEST_SIZES, 1, GROUPS),
  )


@functools.cache
def built(name, devices=2, rate=0.1, batch_size=4, hidden=(5,)):
  """A method with two clusters where it has any."""
  local = helpers.local(batch_size, devices=devices, rate=rate, hidden=hidden)
  return algorithms.build(name, local, **OPTIONS.get(name, {}))


def spec(algorithm, train, test, workdir=None, **options):
  """A `Spec` without fine-tuning and portrait, unless they are asked for."""
  folder = workdir and pathlib.Path(workdir)
  options = {'make_portrait': False, 'finetune_epochs': 0} | options
  if placement := options.pop('data_placement', None):
    local = algorithm.local._replace(data_placement=placement)
    algorithm = Algorithm(**algorithm._asdict() | {'local': local})
  options['clients_per_round'], options['selection'] = counted(
    options.get('clients_per_round', 0), train.num_clients
  )
  return Spec(algorithm=algorithm, train=train, test=test, workdir=folder, **options)


def simulate(algorithm, train, test, **options):
  """The result of `fj.simulate`, by options of a `Spec`."""
  return run_one(spec(algorithm, train, test, **options))


def simulate_many(runs, runs_at_once=0, like=(), **options):
  """The results of `fj.simulate_many`, by options of a `Spec`."""
  specs = [spec(**options | run) for run in runs]
  return run_many(specs, runs_at_once, like=like)


def simulated(
  method='fesem', data=None, devices=2, rate=0.1, batch_size=4, hidden=(5,), **options
):
  """The result of `simulate`, for a method by its name or an `Algorithm`."""
  if not isinstance(method, Algorithm):
    config = {'algorithm': method, 'seed': 0, 'model': 'mlp'}
    config |= {'hidden': [str(size) for size in hidden]}
    options = {'config': config} | options
    method = built(method, devices, rate, batch_size, hidden)
  return simulate(method, *(data or federation()), **{'rounds': 2} | options)


# Of linear models, whose programs are compiled faster.
simulated_linear = functools.partial(simulated, hidden=())


def without_time(history):
  """Records of rounds but for their seconds."""
  return [{k: v for k, v in r.items() if k != 'seconds'} for r in history]


def records(folder):
  """What `metrics.jsonl` of a workdir holds but for the seconds."""
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  return without_time(map(json.loads, lines))


def assert_same_state(a, b):
  """Equal to the last bit."""
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_array_equal(x, y)
