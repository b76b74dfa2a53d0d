"""Warnings of clusters that are no groups of clients."""

import functools

import jax
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.run.results.records import lopsided, no_groups
from tests.support import helpers
from tests.support.nights import rest_by_night


@pytest.mark.parametrize(
  ('sizes', 'ari', 'warns'),
  [
    ([1, 148, 6, 1, 1, 1, 1, 1], 0.01, True),
    ([11, 0, 1], None, True),
    ([0, 11, 1], 1.0, False),  # The true groups are no mistake.
    ([8, 1], None, False),  # Of nine clients, one is a ninth.
    ([40, 39, 1], None, False),
    ([20, 20, 20, 20], 1.0, False),
    ([80], None, False),
    ([], None, False),
  ],
)
def test_sizes_that_are_lopsided(sizes, ari, warns):
  said = lopsided(sizes, ari)
  assert (said is not None) == warns
  if warns:
    assert f'One cluster has {max(sizes)} of the {sum(sizes)} clients' in said
    assert f'{sizes.count(1)} of the {len(sizes) - sizes.count(0)} clusters' in said
    assert 'recluster_every=5' in said


def test_a_run_warns_before_its_first_round_and_keeps_the_note(caplog):
  train, test = helpers.federation([5] * 12), helpers.federation([3] * 12, seed=1)
  train.x[-5:] *= 30  # An outlier, which k-means sets apart.
  algorithm = fj.algorithms.build('fesem', helpers.local(hidden=()), num_clusters=2)
  result = fj.simulate(algorithm, train, test, rounds=1)
  assert sorted(result.summary['clusters']['sizes']) == [1, 11]
  assert result.summary['notes'] == [lopsided([1, 11], 0.0)]
  assert caplog.text.count('Before the first round: One cluster has 11 of the 12') == 1


@pytest.mark.parametrize(
  ('sizes', 'ari', 'says'),
  [
    ([0, 12, 0], 0.0, 'All 12 clients are in one cluster'),
    ([12, 0], None, 'All 12 clients are in one cluster'),
    ([1, 1, 0, 1], 0.0, 'Each of the 3 clients is a cluster of its own'),
    ([12, 0], 1.0, None),  # The true groups.
    ([1, 1, 1], 1.0, None),
    ([12], None, None),  # As the user chose.
    ([11, 1], 0.0, None),
    ([1, 0], None, None),
    ([], None, None),
  ],
)
def test_sizes_without_groups(sizes, ari, says):
  said = no_groups(sizes, ari, ('raise it', 'lower it'))
  if says is None:
    assert said is None
  else:
    assert said.startswith(says)
    assert said.endswith(
      'clients, raise it.' if says.startswith('All') else 'them, lower it.'
    )
    assert no_groups(sizes, ari, ()).endswith('another seed or number of clusters.')


@pytest.mark.parametrize(
  ('name', 'options', 'says'),
  rest_by_night(
    [
      ('fed_drift', {'drift_delta': 100.0, 'check_every': 1}, 'lower `drift_delta`.'),
      ('fed_drift', {'drift_delta': 0.0, 'check_every': 1}, 'raise `drift_delta`.'),
      ('stocfl', {'stocfl_tau': -1.0, 'anchor_epochs': 1}, 'raise `stocfl_tau`.'),
      ('stocfl', {'stocfl_tau': 1.0, 'anchor_epochs': 1}, 'lower `stocfl_tau`.'),
      ('flux', {'eps_scaling': 1e3, 'warmup_rounds': 1}, 'lower `eps_scaling`.'),
      ('flux', {'eps_scaling': 1e-3, 'warmup_rounds': 1}, 'raise `eps_scaling`.'),
      (
        'pacfl',
        {'angle_threshold': 90.0, 'num_clusters': 6, 'num_vectors': 1},
        'lower `angle_threshold`.',
      ),
      ('fed_cluster', {'eps1': 0.0}, 'or `gamma`, or raise `eps1`.'),
    ],
    by_day=2,
  ),
)
def test_a_method_that_finds_no_groups_names_its_threshold(name, options, says, caplog):
  groups = [0, 0, 0, 1, 1, 1]
  train = helpers.federation([9] * 6, groups=groups)
  test = helpers.federation([3] * 6, seed=1, groups=groups)
  algorithm = fj.algorithms.build(name, helpers.local(), **options)
  result = fj.simulate(algorithm, train, test, rounds=2)
  (note,) = (n for n in result.summary['notes'] if 'found no groups' in n)
  assert note.endswith(says)
  assert note in caplog.text


def test_weights_of_one_greatest_cluster_are_no_single_cluster():
  """Clients of FedEM may all have one greatest weight, and still mix the models."""
  data = helpers.federation([9] * 2, groups=[0, 1])
  algorithm = fj.algorithms.build('fed_em', helpers.local(rate=0.0), num_clusters=2)
  result = fj.simulate(algorithm, data, data, rounds=1)
  assert sorted(result.history[-1]['cluster_sizes']) == [0, 2]
  assert not any('found no groups' in note for note in result.summary['notes'])


def notes_of(caplog, name, clients, **options):
  caplog.clear()
  data = helpers.federation([9] * clients)
  options = {'aggregation': 'trimmed_mean', 'beta': 0.25} | options
  given = {n: options.pop(n) for n in ('clients_per_round',) if n in options}
  local = helpers.local()._replace(dropout_rate=options.pop('dropout_rate', 0.0))
  algorithm = fj.algorithms.build(name, local, **options)
  result = fj.simulate(algorithm, data, data, rounds=1, **given)
  notes = [n for n in result.summary['notes'] if 'plain mean' in n]
  assert caplog.text.count('plain mean') == len(notes)
  return notes


def test_a_trimmed_mean_that_drops_no_model_is_told(caplog):
  (note,) = notes_of(caplog, 'fed_avg', 8, clients_per_round=3)
  assert 'fewer than 4 clients, and a center has at most 3 a round' in note
  assert not notes_of(caplog, 'fed_avg', 4)
  (note,) = notes_of(caplog, 'fed_avg', 4, dropout_rate=0.4)
  assert 'a center has at most 2.4 a round on average' in note
  assert not notes_of(caplog, 'fed_avg', 3, beta=0.4)
  assert not notes_of(caplog, 'fed_avg', 3, aggregation='median')
  assert not notes_of(caplog, 'fed_avg', 3, beta=0.0)  # Asked for.


def test_a_trimmed_mean_of_clusters_that_are_too_small_is_told(caplog):
  (note,) = notes_of(caplog, 'fesem', 6, num_clusters=6)
  assert 'fewer than 4 clients' in note
  assert not notes_of(caplog, 'fesem', 6, num_clusters=1)
  assert len(notes_of(caplog, 'fesem', 3, num_clusters=2)) == 1  # At the start.


@pytest.mark.parametrize(
  ('options', 'clients', 'fewest'),
  [
    ({'aggregation': 'median'}, 2, 3),
    ({'aggregation': 'krum', 'krum_models': 3}, 3, 4),
  ],
)
def test_rules_that_leave_out_no_model_are_told(options, clients, fewest, caplog):
  def notes(count, **given):
    return notes_of(caplog, 'fed_avg', count, **given, **options)

  (note,) = notes(4, clients_per_round=clients)
  assert (
    f'no model of fewer than {fewest} clients, and a center has at most {clients} a'
    in note
  )
  assert not notes(fewest)
  data = helpers.federation([9] * clients)
  means = [
    fj.simulate(
      fj.algorithms.build('fed_avg', helpers.local(), **each), data, data, rounds=2
    ).state.params
    for each in (options, {'weighting': 'uniform'})
  ]
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), *means)


def starts_alike(model):
  """The model, of which every start is one."""
  return model._replace(init=lambda key: model.init(jax.random.key(5)))


@pytest.mark.parametrize(
  ('name', 'options', 'change', 'says'),
  [
    ('fed_em', {}, starts_alike, True),
    ('fed_em', {}, lambda model: model, False),
    ('fesem', {'temperature': 1e3}, lambda model: model, True),
    ('fesem', {'temperature': 0.5}, lambda model: model, False),
    ('fesem', {}, starts_alike, False),
  ],
)
def test_clusters_of_equal_models_are_told(name, options, change, says, caplog):
  groups = [0, 0, 0, 1, 1, 1]
  data = helpers.federation([9] * 6, groups=groups)
  local = helpers.local()
  local = local._replace(model=change(local.model))
  algorithm = fj.algorithms.build(name, local, num_clusters=2, **options)
  result = fj.simulate(algorithm, data, data, rounds=3)
  notes = [n for n in result.summary['notes'] if 'clusters are equal' in n]
  assert len(notes) == says
  assert caplog.text.count('clusters are equal') == says


def test_matching_on_a_model_without_hidden_units_is_told():
  data = helpers.federation([9] * 4)
  for hidden, says in (((), True), ((4,), False)):
    local = helpers.local(hidden=hidden)
    algorithm = fj.algorithms.build('fesem_ma', local, num_clusters=2)
    result = fj.simulate(algorithm, data, data, rounds=1)
    assert any('it is fesem.' in note for note in result.summary['notes']) == says
