"""Methods, models and data of the user's own, from files outside the package."""

import functools
import json
import sys

import jax
import pytest
from absl import flags

from experiments import comparisons, methods
from experiments import flags as experiment_flags
from experiments import run as experiment
from experiments.build import (
  build_callbacks,
  build_local,
  build_model,
  load_data,
  own_model,
)
from fesem_jax import data
from fesem_jax.run.simulation import simulate
from tests.experiments.binaries_test import refuses

METHOD = '''
import jax, jax.numpy as jnp
import fesem_jax
from fesem_jax.algorithms.common import global_model

def damped(local, *, shift: float = 0.5, fast: bool = False, count: int = 0):
  """FedAvg that goes only a part of the way."""

  def step(state, data, cohort, key):
    mean = global_model.Averaging('by_examples')
    new, trained = global_model.train_and_average(
      local, state, data, cohort, key, mean
    )
    params = jax.tree.map(lambda a, b: a + shift * (b - a), state.params, new.params)
    return new._replace(params=params), trained.info()

  init = global_model.init(local)
  return fesem_jax.Algorithm(local, init, step, global_model.deployed)

def nothing(local): return 3
def heavy(local, *, momentum: float = 0.5):
  return fesem_jax.Algorithm(local, momentum, None, None)
'''

MODEL = """
import flax.linen as nn
import jax.numpy as jnp
from fesem_jax import Model, models

def net(example_shape, num_classes, *, width: int = 3):
  return models.build('mlp', example_shape, num_classes, (width,))

class Flat(nn.Module):
  num_classes: int
  bias: int = 1
  @nn.compact
  def __call__(self, x):
    return nn.Dense(self.num_classes, bool(self.bias))(x.reshape(x.shape[0], -1))

def linen(example_shape, num_classes, *, bias: int = 1): return Flat(num_classes, bias)
"""

DATA = """
import jax
import numpy as np

def blobs(*, size: int = 12):
  y = np.arange(10 * size) % 3
  x = np.random.default_rng(0).normal(size=(len(y), 4)) + 2 * y[:, None]
  return {'x': x, 'y': y, 'client': np.arange(len(y)) // size}

calls = []
def changing():
  calls.append(1)
  return blobs() | {'x': np.ones((120, len(calls)))}

"""


WATCH = """
import fesem_jax

class Watch(fesem_jax.Callback):
  def on_round(self, event):
    with open('watched', 'a') as file:
      file.write(f'{event.number} ')

def watch(): return Watch()
def no_callback(): return 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A current directory that holds modules of the user's own."""
  modules = {'own_fl': METHOD, 'own_net': MODEL, 'own_data': DATA, 'own_watch': WATCH}
  for name, text in modules.items():
    (tmp_path / f'{name}.py').write_text(text)
  monkeypatch.chdir(tmp_path)
  methods.load.cache_clear()
  yield tmp_path
  for name in modules:
    sys.modules.pop(name, None)
  sys.path[:] = [p for p in sys.path if p != str(tmp_path)]


@pytest.fixture
def parse():
  """Sets the flags of run."""
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()

  def parsed(*arguments):
    flags.FLAGS.unparse_flags()
    for name in flags.FLAGS:
      if name in experiment_flags.common():
        flags.FLAGS[name].unparse()
    flags.FLAGS(['run', *arguments])

  flags.FLAGS(['run'])
  yield parsed
  parsed()


def test_own_models_and_data_are_built_with_their_options(folder, parse):
  parse('--model=own_net:net(width=7)', '--dataset=own_data:blobs(size=15)')
  config = experiment_flags.configuration('own_fl:damped', {'shift': 0.1})
  train, test = load_data(config)
  assert train.num_clients == 10
  assert len(train.y) + len(test.y) == 150
  model = build_model(config, train)
  assert model.init(jax.random.key(0))['dense0']['kernel'].shape == (4, 7)
  json.dumps(config)


def test_options_of_own_methods_have_the_types_of_their_defaults(folder, parse):
  _, result = methods.parse_method('own_fl:damped(shift=1, fast=true;count=2)')
  assert result == {'shift': 1.0, 'fast': True, 'count': 2}
  assert type(result['shift']) is float
  with refuses('prox_lambda'):
    experiment_flags.configuration('own_fl:damped', {'prox_lambda': 0.1})
  config = experiment_flags.configuration('own_fl:damped', {'shift': 1.0, 'count': 2})
  # They are tuned as options of this package are.
  personal = methods.user_options(['fesem', 'own_fl:damped'])
  parse = functools.partial(comparisons.parse_values, personal=personal)
  assert parse('shift:1,0.5') == ('shift', [1.0, 0.5])
  assert comparisons.points('own_fl:damped', config, {'shift': [0.5]}) == [
    {'shift': 0.5}
  ]
  with refuses('count'):
    parse('count:x')
  with refuses('tune'):
    comparisons.parse_values('shift:1')


def test_an_option_of_an_own_method_may_be_named_as_a_flag(folder, parse):
  parse('--momentum=0.3')
  name, result = methods.parse_method('own_fl:heavy(momentum=0.7;clip_norm=2)')
  assert result == {'method.momentum': 0.7, 'clip_norm': 2.0}
  config = experiment_flags.configuration(name, {'method.momentum': 0.7})
  assert (config['momentum'], config['method.momentum']) == (0.3, 0.7)
  assert methods.configured(config, None).init == 0.7


def test_own_methods_of_a_table(folder, parse):
  listed = ['own_fl:damped(fast=True)', 'fesem(2)', 'own_fl:damped(learning_rate=1.0)']
  table = comparisons.configurations(listed, {})
  assert list(table) == listed
  assert table[listed[0]]['fast'] is True
  assert table[listed[2]]['learning_rate'] == 1.0
  for text, subject in (
    ('own_fl:damped(beta=1)', 'beta'),
    ('own_fl:damped(3)', 'num_clusters'),
    ('own_fl:damped(shift=x)', 'shift'),
  ):
    with refuses(subject):
      methods.parse_method(text)


@pytest.mark.parametrize(
  ('use', 'subject'),
  [
    (lambda: build_callbacks({'callbacks': ['own_watch']}), 'callbacks'),
    (lambda: build_callbacks({'callbacks': ['own_watch:no_callback']}), 'callbacks'),
    (lambda: methods.build('own_fl:nothing', None, {}), 'algorithm'),
    (lambda: methods.parse_method('own_fl:damped(fast=maybe)'), 'fast'),
    (lambda: own_model('own_net:net(depth=3)', (4,), 2, 'classification'), 'model'),
  ],
)
def test_what_own_functions_lack_is_refused(folder, parse, use, subject):
  with refuses(subject):
    use()


def test_own_models_may_be_flax_modules(folder, parse):
  train, test = data.load('digits', num_clients=4, examples_per_client=20)
  parse('--model=own_net:linen(bias=0)')
  config = experiment_flags.configuration('fed_avg', {})
  model = build_model(config, train)
  params = model.init(jax.random.key(0))
  assert params['Dense_0']['kernel'].shape == (64, 10)
  assert len(jax.tree.leaves(params)) == 1
  local = build_local(config, model, train, experiment_flags.machine())
  result = simulate(
    methods.configured(config, local), train, test, rounds=2, eval_every=0,
    finetune_epochs=0,
  )  # fmt: skip
  losses = [record['train_loss'] for record in result.history]
  assert losses[1] < losses[0]


def test_own_data_that_differ_at_each_call_are_not_reproducible(folder, parse):
  parse('--dataset=own_data:changing')
  config = experiment_flags.configuration('fed_avg', {})
  load_data(config)
  with refuses('dataset'):
    load_data(config)
  for size in (12, 13, 12):  # The same of the same options.
    parse(f'--dataset=own_data:blobs(size={size})')
    load_data(experiment_flags.configuration('fed_avg', {}))
