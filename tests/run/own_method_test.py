"""Clusters of methods that report none: a run takes them from what clients deploy."""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.run.callbacks.logged_runs import scalars
from fesem_jax.run.programs import Programs
from fesem_jax.run.results import records
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
  found = [(r['cluster_sizes'], r.get('moved')) for r in result.history]
  assert found == [
    ([7, 0, 0], None), ([7, 0, 0], 0), ([4, 3, 0], 3), ([3, 3, 1], 1)
  ]  # fmt: skip
  assert [r['ari'] for r in result.history[:3]] == [0, 0, 1]
  assert all(r['objective'] is None for r in result.history[1:])
  assert result.summary['num_clusters'] == 3
  held = result.summary['clusters']
  assert (held['sizes'], held['objective']) == ([3, 3, 1], None)
  assert held['rounds_to_stable'] == 3
  np.testing.assert_array_equal(result.clients.cluster, CHOICES[-1])


def without_report(algorithm):
  """The same method, which says nothing of its clusters."""

  def step(*args):
    state, info = algorithm.step(*args)
    return state, info._replace(clusters=None)

  return algorithm._replace(step=step)


def test_they_are_those_that_a_shipped_method_reports():
  local = helpers.local(devices=2, hidden=())
  fesem = fj.algorithms.build('fesem', local, num_clusters=2)
  shuffled = fj.wrappers.with_shuffled_start(fesem, 0.9)
  algorithm = fj.wrappers.with_loss_checks(shuffled, every=1)
  options = {'rounds': 6, 'eval_every': 5, 'clients_per_round': 4}
  told = scripted_run(algorithm, **options).history
  found = scripted_run(without_report(algorithm), **options).history
  assert sum(r['moved'] for r in told[1:]) > 0
  for a, b in zip(told, found, strict=True):
    same = a.keys() - {'seconds', 'objective'}
    assert {k: a[k] for k in same} == {k: b[k] for k in same}


def test_a_run_that_goes_on_counts_the_same_moves(tmp_path):
  algorithm, programs = scripted(), Programs()
  whole = scripted_run(algorithm, workdir=tmp_path / 'whole', programs=programs)
  for number in (1, 3):
    parts = scripted_run(
      algorithm, number, workdir=tmp_path / 'parts', programs=programs
    )
  for a, b in zip(whole.history, parts.history, strict=True):
    assert a['cluster_sizes'] == b['cluster_sizes']
    assert a.get('moved') == b.get('moved')
  assert whole.summary['clusters'] == parts.summary['clusters']
  lines = (tmp_path / 'parts' / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line).get('moved') for line in lines] == [None, 0, 3, 1]


def test_moves_have_a_panel_only_where_they_are_recorded(tmp_path):
  plots = pytest.importorskip('fesem_jax.plots')
  scripted_run(scripted(), workdir=tmp_path)
  drawn = plots.PlottedRun(tmp_path)

  def moves():
    """What the panel of moves says beside its bars; None without such a panel."""
    axes = plots.clusters_over_rounds(drawn).axes
    found = [axis for axis in axes if 'moved' in axis.get_title()]
    return [text.get_text() for text in found[0].texts] if found else None

  assert moves() == []
  assert len(plots.convergence([drawn]).axes) == 2  # Eq. 6 has no panel.
  for record in drawn.history:
    record.pop('moved', None)  # As a run of an older version.
  assert moves() is None
  for record in drawn.history:
    record['moved'] = 0
  assert moves() == ['no move in the recorded rounds']


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


def changed(algorithm=None, **parts):
  """The method with another `init`, `step` or `deployed`, made of the old one."""
  algorithm = algorithm or scripted()
  made = {name: part(getattr(algorithm, name)) for name, part in parts.items()}
  return algorithm._replace(**made)


def then(change):
  """A function that changes what another returns."""
  return lambda old: lambda *args: change(old(*args))


def mixed(change):
  """The method whose clients predict with mixtures, of changed weights."""
  deployed = then(lambda used: used._replace(mixture=change(used.mixture)))
  return changed(scripted(as_mixture=True), deployed=deployed)


def reporting(assignment, sizes):
  """The method that reports these clusters."""
  given = jnp.array(assignment, jnp.int32), jnp.array(sizes), jnp.int32(0)
  return scripted(report=lambda data: fj.Clusters(*given))


@pytest.mark.parametrize(('algorithm', 'message'), [
    (changed(step=then(lambda made: (made[0]._replace(round=1.0), made[1]))),
     r'`step` .* float32\[\] at \.round, where `init` has int32\[\]'),
    (changed(step=then(lambda made: (made[0]._replace(models={}), made[1]))),
     r"a state with nothing at \.models\['logits'\]"),
    (changed(step=then(lambda made: made[0])), 'the new state and a RoundInfo'),
    (changed(step=then(lambda made: (made[0], 0.5))), 'the new state and a RoundInfo'),
    (changed(step=then(lambda made: (*made, made[1]))), 'new state and a RoundInfo'),
    (changed(deployed=then(lambda used: used._replace(choice=used.choice + 4))),
     r'gives client c\d the model 4, but `choice` must lie in 0\.\.2'),
    (changed(deployed=then(lambda used: used._replace(choice=used.choice - 3))),
     r'gives client c\d the model -3, but `choice` must lie in 0\.\.2'),
    (mixed(lambda weights: 2 * weights), r'client c\d a `mixture` of .* up to 1'),
    (mixed(lambda weights: 4 * weights - 1), r'client c\d a `mixture` .* negative'),
    (reporting([0, 0], [7, 0, 0]), r'an `assignment` of int32 and shape \(2,\)'),
    (reporting([4] * 8, [7, 0, 0]), r'clusters 4 to 4, but `sizes` of 3'),
    (reporting([1] * 8, [7, 0, 0]), r'`sizes` \[7, 0, 0\], but .* are \[0, 7, 0\]'),
    (changed(deployed=then(lambda used: used._replace(mixture=jnp.ones((8, 3)) / 3))),
     'a `mixture` beside a `choice`'),
])  # fmt: skip
def test_mistakes_of_a_method_are_one_sentence(algorithm, message):
  with pytest.raises(fj.UserError, match=message):
    scripted_run(algorithm)


def test_simulate_refuses_a_function_that_builds_a_method():
  with pytest.raises(fj.UserError, match='`algorithm` is a function, not an Algorithm'):
    fj.simulate(scripted, *federation(), rounds=1)


def test_starts_must_be_of_the_clients_of_the_cohort():
  local = helpers.local(hidden=())
  algorithm = fj.algorithms.build('fesem', local, num_clusters=2)

  def step(state, data, cohort, key):
    starts = fj.ClientModels(state.centers, state.assignment)
    trained = fj.train_cohort(local, starts, data, cohort, key)
    return state, trained.info()

  with pytest.raises(fj.UserError, match=r'shape \(8,\), but the cohort has 4 clients'):
    scripted_run(algorithm._replace(step=step), clients_per_round=4)


def test_a_workdir_is_of_the_start_the_rounds_and_what_is_deployed(tmp_path):
  scripted_run(scripted(), workdir=tmp_path)
  for other in (
    changed(init=then(lambda s: s._replace(models=jax.tree.map(jnp.zeros_like, s[0])))),
    changed(deployed=then(lambda used: used._replace(choice=used.choice * 0))),
  ):
    with pytest.raises(fj.UserError, match='another configuration: `method`'):
      scripted_run(other, workdir=tmp_path)


def history(moves, trained=1, **entries):
  of_rounds = [{'moved': m, 'trained': trained, **entries} for m in moves]
  return [{'cluster_sizes': [7]}, *of_rounds]


@pytest.mark.parametrize(('records_of_run', 'stops'), [
    (history([3, 0, 0], objective=None), True),
    (history([0, 0], objective=None), True),
    (history([0], objective=None), False),  # Too short.
    (history([3, 0], objective=None), False),
    (history([0, 0, 0], objective=None, trained=0), False),  # Nothing was trained.
    (history([0, 0, 0], objective=1.0), True),
    # A method that measures Eq. 6, in rounds without clients.
    (history([0], objective=1.0) + history([0, 0], objective=None)[1:], False),
    ([{'round': 0}, *[{'trained': 1}] * 2, {'moved': 0, 'trained': 1}], False),
])  # fmt: skip
def test_patience_goes_by_the_moves_alone_without_equation_6(records_of_run, stops):
  assert records.settled(records_of_run, 2) is stops


def test_the_package_shows_its_public_names_only():
  assert dir(fj) == sorted(fj.__all__)
  for name in fj.__all__:
    assert getattr(fj, name) is not None
  assert {'Clusters', 'train_cohort', 'cohort_losses', 'compare_clients'} <= {*dir(fj)}
  assert not {'matching', 'sharding', 'writer', '__file__'} & {*dir(fj)}
