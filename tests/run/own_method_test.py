"""Clusters of methods that report none: a run takes them from what clients deploy."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.run.callbacks.loggers import scalars
from tests.support import helpers
from tests.support.runs import federation, simulated

# The cluster of each client at the start and after each of three rounds.
CHOICES = [[0] * 7, [0] * 7, [0, 1, 0, 1, 0, 1, 0], [0, 1, 2, 1, 0, 1, 0]]


class State(NamedTuple):
  models: dict
  round: jax.Array


def scripted(as_mixture=False, report=None):
  """A method of three centers that trains nothing; clients choose as they are told."""
  local = helpers.local(hidden=())

  def init(key, data):
    del data
    models = jax.vmap(local.model.init)(jax.random.split(key, 3))
    return State(models, jnp.int32(0))

  def step(state, data, cohort, key):
    del cohort, key
    one, clusters = jnp.int32(1), None if report is None else report(data)
    info = fj.RoundInfo(jnp.float32(1.0), jnp.int32(0), one, one, clusters)
    return state._replace(round=state.round + 1), info

  def deployed(state, data):
    # Clients are arranged otherwise, and padded; those that pad use a center too.
    ids = jnp.asarray(data.client_ids)
    choice = jnp.asarray(CHOICES, jnp.int32)[state.round].at[ids].get(mode='clip')
    if as_mixture:
      weights = 0.2 + 0.4 * jax.nn.one_hot(choice, 3)
      return fj.ClientModels(shared=state.models, mixture=weights)
    return fj.ClientModels(shared=state.models, choice=choice)

  return fj.Algorithm(local, init, step, deployed)


def scripted_run(algorithm, rounds=3, **options):
  return simulated(
    algorithm, rounds=rounds, **{'eval_every': 2, 'finetune_epochs': 0} | options
  )


@pytest.mark.parametrize('as_mixture', [False, True])
def test_clusters_sizes_and_moves_are_of_what_clients_deploy(as_mixture):
  result = scripted_run(scripted(as_mixture))
  actual = [(r['cluster_sizes'], r.get('moved')) for r in result.history]
  assert actual == [
    ([7, 0, 0], None), ([7, 0, 0], 0), ([4, 3, 0], 3), ([3, 3, 1], 1)
  ]  # fmt: skip
  assert [r['ari'] for r in result.history[:3]] == [0, 0, 1]
  assert all(r['objective'] is None for r in result.history[1:])
  assert result.summary['num_clusters'] == 3
  clusters = result.summary['clusters']
  assert (clusters['sizes'], clusters['objective']) == ([3, 3, 1], None)
  assert clusters['rounds_to_stable'] == 3
  np.testing.assert_array_equal(result.clients.cluster, CHOICES[-1])


@pytest.mark.parametrize('objective', [None, 2.0])
def test_a_method_may_report_clusters_with_or_without_equation_6(objective):
  def report(data):
    value = None if objective is None else jnp.float32(objective)
    unassigned = jnp.zeros(data.num_clients, jnp.int32)
    return fj.Clusters(unassigned, jnp.array([7, 0, 0]), jnp.int32(2), value)

  result = scripted_run(scripted(report=report), eval_every=0)
  first = result.history[1]  # What is reported is taken, not what is deployed.
  assert (first['cluster_sizes'], first['moved']) == ([7, 0, 0], 2)
  assert first['objective'] == result.summary['clusters']['objective'] == objective
  tags = dict(scalars(first))
  assert ('objective' in tags) == (objective is not None)
  assert tags['moved'] == 2


def deploying(**parts):
  """A method that deploys something else."""
  algorithm = scripted()

  def deployed(state, data):
    return algorithm.deployed(state, data)._replace(**parts)

  return algorithm._replace(deployed=deployed)


def replaced():
  algorithm = scripted()
  return algorithm._replace(local=algorithm.local)


def twice():
  data, _ = federation()
  return fj.cohort_of([0, 1, 1], data, helpers.local().mesh)


@pytest.mark.parametrize(('mistake', 'subject'), [
  (lambda: scripted_run(deploying(choice=None)), 'deployed: gives 3 models'),
  (lambda: scripted_run(deploying(choice=jnp.zeros(1, jnp.int32))), 'deployed: choice'),
  (lambda: scripted_run(deploying(choice=jnp.zeros(8))), 'deployed: choice'),
  (lambda: scripted_run(deploying(choice=None, mixture=jnp.ones((8, 2)))),
   'deployed: mixture'),
  (replaced, 'local'),
  (twice, 'client_ids'),
])  # fmt: skip
def test_mistakes_of_a_method_are_refused(mistake, subject):
  with pytest.raises(fj.UserError, match=subject):
    mistake()
