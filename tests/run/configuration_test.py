"""A workdir goes on with its run alone: equal values, data, and code of the round."""

import dataclasses
import json

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.configuration import check_same, digest_of_data
from fesem_jax.training.optimizers import local_optimizer
from tests.support import helpers
from tests.support.runs import federation, simulated_linear

PULL = jnp.asarray(0.1)  # A constant of the program.


def penalty(outputs):
  """A helper of the loss; it reads a global."""
  return PULL * jnp.square(outputs).sum(axis=-1)


def edited_penalty(outputs):
  return PULL * jnp.abs(outputs).sum(axis=-1)


def method(optimizer=None, hidden=(4,), penalty=penalty, **options):
  """A method of an own model, as a fresh process would build it."""
  sizes = [*hidden, 3]

  def loss(outputs, y):
    log_loss = optax.softmax_cross_entropy_with_integer_labels(outputs, y)
    return log_loss + penalty(outputs)

  layers = [nn.Dense(size) for size in sizes]
  model = fj.models.from_flax(nn.Sequential(layers), helpers.SHAPE, loss=loss)
  local = fj.local_training(model, optimizer or optax.sgd(0.1), batch_size=4)
  return fj.algorithms.fed_avg(local, **options)


def simulated(algorithm, workdir, rounds=1, data=None, **options):
  options |= {'finetune_epochs': 0, 'eval_every': 0}
  workdir = fj.Workdir(workdir, portrait=False)
  splits = data or federation()
  return fj.simulate(algorithm, *splits, rounds=rounds, workdir=workdir, **options)


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  simulated(method(), folder)
  return folder


def test_the_same_run_goes_on(workdir):
  assert len(simulated(method(), workdir, rounds=2).history) == 2


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda: method(optax.sgd(0.5)), 'training was edited'),
    (lambda: method(optax.sgd(0.1, momentum=0.9)), 'training was edited'),
    (lambda: method(penalty=edited_penalty), 'training was edited'),
    (lambda: method(weighting='uniform'), 'method.weighting absent there, uniform'),
    (lambda: method(hidden=(5,)), 'training was edited'),
  ],
)
def test_what_was_edited_is_named(workdir, change, message):
  with pytest.raises(fj.UserError, match=message) as raised:
    simulated(change(), workdir, rounds=2)
  assert len(str(raised.value).splitlines()) == 1


def test_another_hyperparameter_is_another_run(tmp_path):
  def outcome(rate, rounds):
    (train, test), values = federation(), {'rate': rate}
    return fj.simulate_many(
      lambda rate: method(local_optimizer('sgd', rate)), [{'values': values}],
      train=train, test=test, rounds=rounds, workdir=tmp_path / 'run', eval_every=0,
    )[0]  # fmt: skip

  assert len(outcome(0.1, 1).history) == 1
  assert 'training was edited' in str(outcome(0.5, 2))


def test_a_global_that_has_changed_is_seen(workdir, monkeypatch):
  monkeypatch.setattr(f'{__name__}.PULL', jnp.asarray(0.2))
  with pytest.raises(fj.UserError, match='training was edited'):
    simulated(method(), workdir, rounds=2)


def test_other_data_and_seeds_are_named(workdir):
  for options, name in (
    ({'seed': 1}, 'seed 0 there, 1 here'),
    ({'data': [helpers.federation([4] * 7, seed) for seed in range(2)]}, 'the data'),
  ):
    with pytest.raises(fj.UserError, match=name):
      simulated(method(), workdir, rounds=2, **options)


def test_code_is_not_compared_on_another_machine(tmp_path):
  simulated(method(), tmp_path)
  path = tmp_path / 'config.json'
  config = json.loads(path.read_text())
  config['code'] = {'round': '', 'machine': ''}
  path.write_text(json.dumps(config))
  simulated(method(), tmp_path)


def test_entries_that_differ_are_named_in_one_line(tmp_path):
  old = {'learning_rate': 0.1, 'model': {'name': 'mlp'}, 'rounds': 2, 'seed': 0}
  check_same(tmp_path, old, old | {'rounds': 5, 'data_placement': 'replicated'})
  with pytest.raises(fj.UserError) as raised:
    check_same(tmp_path, old, old | {'learning_rate': 0.5, 'model': {'name': 'cnn'}})
  assert str(raised.value) == (
    f'{tmp_path} holds another run: learning_rate 0.1 there, 0.5 here, model.name mlp '
    'there, cnn here; choose another workdir'
  )


def test_methods_and_models_have_their_name_and_options():
  local = helpers.local(model='logistic')
  fesem = fj.algorithms.fesem(local, num_clusters=np.int64(2), prox_lambda=0.5)
  wrapped = fj.wrappers.with_client_memory(fesem, ['**/bias'])
  described = {'name': 'fesem', 'num_clusters': 2, 'prox_lambda': 0.5}
  assert fesem.made_by.described() == described
  expected = {'name': 'with_client_memory', 'method': described, 'parts': ['**/bias']}
  assert wrapped.made_by.described() == expected
  with pytest.raises(TypeError, match="unexpected keyword argument 'clusters'"):
    fj.algorithms.fesem(local, clusters=2)
  with pytest.raises(fj.UserError, match='num_clusters'):
    fj.algorithms.fesem(local, num_clusters='2')


def test_a_run_of_flags_compares_the_code_of_functions_of_ones_own(tmp_path):
  config = {'algorithm': 'mine:method', 'seed': 0, 'own_code': {'algorithm': 'a'}}
  options = {'workdir': tmp_path, 'rounds': 1, 'finetune_epochs': 0, 'eval_every': 0}
  simulated_linear(method(), config=config, **options)
  simulated_linear(
    method(), config=config | {'own_code': {'algorithm': 'b'}}, **options
  )
  with pytest.raises(fj.UserError, match='training was edited'):
    simulated_linear(method(optax.sgd(0.5)), config=config, **options)


# The digest of examples that a resumed run compares.


def test_a_digest_of_parts_is_that_of_the_whole(monkeypatch):
  rng, sizes = np.random.default_rng(0), [7, 9, 4, 12, 8]
  x = rng.integers(0, 256, (40, 3, 2)).astype(np.uint8)
  data = FederatedData.from_arrays(x, rng.integers(0, 3, 40), sizes, num_classes=3)
  here = np.array([True, False, True, True, False])
  parts = []
  for clients in (here, ~here):
    monkeypatch.setattr(
      'fesem_jax.utils.processes.total', lambda part: parts.append(part) or part
    )
    digest_of_data(data, here=[clients])
  assert ((parts[0] == 0).all(axis=1) == ~here).all()
  monkeypatch.setattr('fesem_jax.utils.processes.total', lambda part: sum(parts))
  assert digest_of_data(data, here=[here]) == digest_of_data(data)
  x = x.copy()
  x[-1] += 1  # Of the last client.
  assert digest_of_data(dataclasses.replace(data, x=x)) != digest_of_data(data)
