"""Epsilon by rounds, sampling and noise, and where runs report it."""

import json
import math

import numpy as np
import pytest

from fesem_jax import algorithms, simulate
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.core.sending import Privacy
from fesem_jax.core.traffic import one_model
from fesem_jax.evaluation import privacy
from fesem_jax.training.privacy import differential_privacy
from tests.support import helpers

LOCAL = helpers.local(model='logistic')


def of(noise, where='server', delta=1e-5):
  return Privacy(1.0, noise, delta, where)


def renyi(noise, rate, order):
  """Renyi divergence of the sampled Gaussian mechanism at a whole order.

  Mironov, Talwar and Zhang, "Renyi Differential Privacy of the Sampled Gaussian
  Mechanism", 2019, Section 3.3.
  """
  logs = [
    math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
    + (order - k) * math.log1p(-rate) + k * math.log(rate)
    + k * (k - 1) / (2 * noise**2)
    for k in range(order + 1)
  ]  # fmt: skip
  return np.logaddexp.reduce(logs) / (order - 1)


def reference(noise, rate, rounds, delta, before=0):
  """Epsilon by whole orders: Canonne, Kamath and Steinke 2020, Proposition 12."""
  result = []
  for order in range(2, 64):
    of_round = order / (2 * noise**2) if rate == 1 else renyi(noise, rate, order)
    total = rounds * of_round + before * order / (2 * noise**2)
    more = math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    result.append(total + more)
  return min(result)


@pytest.mark.parametrize(
  ('noise', 'rate', 'rounds'),
  [(1.1, 256 / 60000, 14063), (4.0, 0.01, 10000), (1.0, 0.1, 100), (10.0, 1.0, 20)],
)
def test_epsilon_of_the_server_is_that_of_the_sampled_gaussian(noise, rate, rounds):
  pytest.importorskip('dp_accounting')
  result = privacy.epsilon(of(noise), rounds, rate)
  expected = reference(noise, rate, rounds, 1e-5)
  assert result <= expected * (1 + 1e-9)  # It tries more orders.
  assert result == pytest.approx(expected, rel=0.02)


def test_the_example_of_dp_accounting():
  """A noise chosen for (1, 1e-6): its test_compute_epsilon_delta_gaussian, 0.6.0."""
  pytest.importorskip('dp_accounting')
  result = privacy.epsilon(of(4.530877117, delta=1e-6), 1)
  assert result == pytest.approx(1, abs=1e-3)  # It tries fewer orders than its test.


def test_noise_of_clients_gains_nothing_by_sampling_and_is_of_twice_the_clip():
  pytest.importorskip('dp_accounting')
  result = privacy.epsilon(of(8.0, 'client'), 10, 0.1)
  assert result == pytest.approx(reference(4.0, 1.0, 10, 1e-5), rel=0.02)
  assert result == privacy.epsilon(of(8.0, 'client'), 10, 1.0)


def test_models_before_the_first_round_count_without_sampling():
  pytest.importorskip('dp_accounting')
  result = privacy.epsilon(of(2.0), 10, 0.1, models_before=1)
  assert result == pytest.approx(reference(2.0, 0.1, 10, 1e-5, before=1), rel=0.02)
  assert privacy.epsilon(of(2.0), 0) == 0.0


def test_there_is_no_epsilon_without_noise_or_delta():
  assert privacy.epsilon(of(0.0), 3) == math.inf
  assert privacy.epsilon(of(1.0, delta=0.0), 3) is None


def test_notes_say_what_epsilon_does_not_cover():
  model = one_model(LOCAL)
  more = model._replace(extras='its loss')
  (note,) = privacy.notes(of(1.0), more, clustered=True)
  assert 'not their choice' in note
  (note,) = privacy.notes(of(1.0, 'client'), more, clustered=True)
  assert note.endswith('beside: its loss')
  assert not privacy.notes(of(1.0), model, clustered=False)
  # First centers that are drawn several times are compared by losses.
  for restarts, named in ((2, True), (1, False)):
    made = algorithms.build('hypo_cluster', LOCAL, init_restarts=restarts)
    (note,) = privacy.notes(of(1.0, 'client'), made.traffic, clustered=True) or ['']
    assert ('losses of first centers' in note) == named


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """(workdir, result) of two rounds with noise of the server, with its epsilon."""
  pytest.importorskip('dp_accounting')
  data = helpers.federation([4, 5, 6, 3], groups=[0, 1, 0, 1])
  local = LOCAL._replace(sends=differential_privacy(0.1, 2.0))
  made, folder = algorithms.build('fed_avg', local, weighting='uniform'), None
  folder = tmp_path_factory.mktemp('private')
  options = {'clients_per_round': 0.4, 'workdir': folder, 'finetune_epochs': 0}
  simulate(made, data, data, rounds=1, **options)
  return folder, simulate(made, data, data, rounds=2, **options)


def test_a_run_reports_its_epsilon_by_round_also_after_it_resumes(run):
  folder, result = run
  expected = [privacy.epsilon(of(2.0), rounds, 0.5) for rounds in (1, 2)]
  assert [r['epsilon'] for r in result.history if r['round']] == expected
  summary = json.loads((folder / 'summary.json').read_text())
  assert summary['epsilon'] == expected[-1]
  assert summary['dp']['sampling_rate'] == 0.5


def test_tables_show_it(run):
  _, result = run
  cells = Comparison(result.frames).table.cells['costs']
  assert cells['epsilon'].tolist() == [f'{result.summary["epsilon"]:.3g}']


def test_runs_with_noise_of_the_server_have_no_equation_6():
  data = helpers.federation([4, 5, 6, 3], groups=[0, 1, 0, 1])
  local = LOCAL._replace(sends=differential_privacy(0.1, 2.0, delta=0))
  method = algorithms.build('fesem', local, num_clusters=2, track_objective=True)
  result = simulate(method, data, data, rounds=2, finetune_epochs=0)
  assert [r['objective'] for r in result.history if r['round']] == [None, None]
  assert 'objective_e_step' not in result.history[-1]
  assert result.summary['clusters']['objective'] is None
  (note,) = result.summary['notes']
  assert 'not their choice' in note
