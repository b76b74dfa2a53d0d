"""Metrics of the user's own, measured beside accuracy and F1."""

import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms, load_run
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.runs import simulate

SIZES = [6, 3, 8, 5]


def among_first_two(logits, y):
  rank = (logits > jnp.take_along_axis(logits, y[:, None], axis=1)).sum(axis=1)
  return (rank < 2).astype(jnp.float32)


def margin(logits, y):
  """Not finite for examples that do not count, which must not matter."""
  label_logits = jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]
  return label_logits - logits.mean(axis=1)


def test_own_metrics_are_in_the_summary_every_record_and_of_each_client(tmp_path):
  train = helpers.federation(SIZES)
  test = helpers.federation([4, 9, 2, 5], seed=3)
  local = helpers.local(chunk=2, devices=2)
  metrics = (('first_two', among_first_two), ('margin', margin))
  local = local._replace(model=local.model._replace(metrics=metrics))
  algorithm = algorithms.build('non_fed', local)
  options = {'rounds': 2, 'workdir': tmp_path, 'finetune_epochs': 1}
  result = simulate(algorithm, train, test, **options)
  loaded = load_run(tmp_path).clients
  actual, sizes = {'first_two': [], 'margin': []}, []
  for i in range(4):
    x, y = test.client(i)
    model = reference.from_params(result.models.personal, i)
    hidden = x.reshape(len(x), -1).astype(np.float64)
    for depth, (kernel, bias) in enumerate(model):
      hidden = hidden @ kernel + bias
      hidden = hidden if depth == len(model) - 1 else np.maximum(hidden, 0)
    label_logits = hidden[np.arange(len(y)), y]
    actual['first_two'].append(
      ((hidden > label_logits[:, None]).sum(axis=1) < 2).mean()
    )
    actual['margin'].append((label_logits - hidden.mean(axis=1)).mean())
    sizes.append(len(y))
  for name, values in actual.items():
    for record in (result.summary, result.history[-1]):
      deployed = record['deployed']
      np.testing.assert_allclose(deployed[f'macro_{name}'], np.mean(values), 1e-4)
      want = np.average(values, weights=sizes)
      np.testing.assert_allclose(deployed[f'micro_{name}'], want, rtol=1e-4)
      assert f'micro_{name}' in record['finetuned']
    for clients in (result.clients, loaded):
      np.testing.assert_allclose(clients[f'deployed_{name}'], values, rtol=1e-4)
      tuned = clients[f'finetuned_{name}']
      want = result.summary['finetuned'][f'macro_{name}']
      np.testing.assert_allclose(tuned.mean(), want, rtol=1e-9)
    assert result.clients[f'deployed_{name}'][1] == pytest.approx(values[1], 1e-4)


@pytest.mark.parametrize('names', [['accuracy'], ['f1'], ['margin', 'margin']])
def test_a_metric_called_as_another_figure_is_refused(names, tmp_path):
  data, local = helpers.federation(SIZES), helpers.local()
  metrics = tuple((name, margin) for name in names)
  local = local._replace(model=local.model._replace(metrics=metrics))
  algorithm = algorithms.build('fed_avg', local)
  with pytest.raises(UserError, match=f'metrics: {names[-1]!r}'):
    simulate(algorithm, data, data, rounds=1, workdir=tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
