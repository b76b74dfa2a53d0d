"""What a run says of one client."""

import jax
import numpy as np
import optax
import pytest

import fesem_jax as fj
from tests.support import helpers
from tests.support.nights import rest_by_night

TRAIN = helpers.federation([9, 6, 8, 7])
MODEL = fj.models.build('logistic', TRAIN.example_shape, TRAIN.num_classes)
LOCAL = fj.local_training(MODEL, optax.sgd(0.1))
FESEM = fj.algorithms.build('fesem', LOCAL, num_clusters=2)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  folder, train = tmp_path_factory.mktemp('run'), TRAIN
  names = [str(train.info.names[i]) for i in (2, 0)]
  seen = States()
  recorded = [fj.callbacks.ClientHistory(), fj.callbacks.CenterDistances(names), seen]
  fj.simulate(FESEM, train, train, rounds=2, workdir=folder, callbacks=recorded)
  return train, fj.load_run(folder, MODEL), seen.held


class States(fj.Callback):
  """Keeps centers and local models of each round, clients in the order of the data."""

  def __init__(self):
    self.held = {}

  def on_round(self, event):
    def flat(stack):
      return np.concatenate(
        [np.asarray(x, np.float64).reshape(len(x), -1) for x in jax.tree.leaves(stack)],
        axis=1,
      )

    state = event.state
    models = flat(state.client_params)[event.arranged.places]
    self.held[event.number] = models, flat(state.centers)


def test_losses_are_those_of_all_centers_on_the_clients_examples(finished):
  train, run, _ = finished
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


def test_distances_are_those_of_the_local_model_to_all_centers(finished):
  train, run, states = finished
  for i in (2, 0):
    found = run.explain(str(train.info.names[i]))
    assert list(found.distances) == [1, 2]
    for number, measured in found.distances.items():
      models, centers = states[number]
      wanted = np.square(models[i] - centers).sum(axis=1)
      np.testing.assert_allclose(measured, wanted, rtol=1e-5)
    assert 'to center 1' in str(found)
  assert not run.explain(str(train.info.names[1])).distances


def streamed():
  return fj.algorithms.build('fesem', LOCAL, num_clusters=2, client_state='streamed')


@pytest.mark.parametrize(
  ('method', 'client', 'said'),
  rest_by_night([
    (lambda: FESEM, 'nobody', 'center_distances'),
    (streamed, 'c0', 'client_state=streamed'),
    (lambda: fj.algorithms.build('fed_avg', LOCAL), 'c0', 'center_distances'),
  ], by_day=2),
)  # fmt: skip
def test_distances_that_cannot_be_recorded_are_refused(method, client, said):
  recorded = [fj.callbacks.CenterDistances(client)]
  with pytest.raises(fj.UserError, match=said):
    fj.simulate(method(), TRAIN, TRAIN, rounds=1, callbacks=recorded)


def test_what_it_cannot_say_is_refused(finished):
  train, run, _ = finished
  with pytest.raises(fj.UserError, match='no one'):
    run.explain('no one')
  name = str(train.info.names[0])
  assert run.explain(name).losses is None
