"""The warning of one giant cluster beside clusters of one client each."""

import pytest

import fesem_jax as fj
from fesem_jax.run.results.records import lopsided
from tests.support import helpers


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
