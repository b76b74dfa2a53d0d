"""What a run says of one client."""

import numpy as np
import optax
import pytest

import fesem_jax as fj
from tests.support import helpers


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  train = helpers.federation([9, 6, 8, 7])
  model = fj.models.build('logistic', train.example_shape, train.num_classes)
  local = fj.local_training(model, optax.sgd(0.1))
  fesem = fj.algorithms.build('fesem', local, num_clusters=2)
  recorded = [fj.callbacks.ClientHistory()]
  fj.simulate(fesem, train, train, rounds=2, workdir=folder, callbacks=recorded)
  return train, fj.load_run(folder, model)


def test_losses_are_those_of_all_centers_on_the_clients_examples(finished):
  train, run = finished
  name = str(train.info.names[2])
  found = run.explain(name, train)
  x, y = train.client(2)
  x = np.asarray(x, np.float64).reshape(len(x), -1) * float(train.scale)
  for k, loss in enumerate(found.losses):
    p = {
      n: np.asarray(v, np.float64) for n, v in run.params(cluster=k)['logits'].items()
    }
    logits = x @ p['kernel'] + p['bias']
    logits -= logits.max(axis=1, keepdims=True)
    nll = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    np.testing.assert_allclose(loss, nll.mean(), rtol=1e-5)
  assert found.figures['cluster'] == run.assignment[name]
  assert found.history['round'].tolist() == run.client_history.rounds
  assert found.history['assignment'][-1] == found.figures['cluster']
  assert 'own' in str(found)


def test_what_it_cannot_say_is_refused(finished):
  train, run = finished
  with pytest.raises(fj.UserError, match='no one'):
    run.explain('no one')
  name = str(train.info.names[0])
  assert run.explain(name).losses is None
