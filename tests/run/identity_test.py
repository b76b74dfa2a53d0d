"""A run of Python is identified by its method's values; edits of own code are said."""

import argparse
import array
import dataclasses
import enum
import functools
import itertools
import json
import operator
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import fesem_jax as fj
from fesem_jax.core.federated_data import Groups
from fesem_jax.core.identity import Identity
from fesem_jax.run.configuration import changes, check_same
from fesem_jax.run.resume import default_config
from tests.support import helpers
from tests.support.runs import federation, simulated_linear, spec


def described(x, name='x'):
  """Values and code of an object."""
  identity = Identity()
  return identity.values(name, x), identity.code()


def values_of(x):
  return [value.partition('=')[2] for value in described(x)[0]]


def digests_of(x):
  return [digest for _, digest in described(x)[1]]


def written(text, **given):
  """The last function of a text, as if it were a user's module."""
  module = types.ModuleType('mine')
  module.__dict__.update(jnp=jnp, jax=jax, **given)
  exec(compile(text, '/home/ann/mine.py', 'exec'), module.__dict__)
  functions = [f for f in vars(module).values() if isinstance(f, types.FunctionType)]
  return functions[-1]


SHRINK = """
RATE = 0.1
KINDS = {'plain', 'other'}

def shrunk(x):
  return x * RATE * len(KINDS)

def make(lam):
  def prox(w):
    return shrunk(w) - lam * w
  return prox

made = make(0.5)
"""


@pytest.mark.parametrize(
  ('change', 'edited', 'others'),
  [
    (('prox', 'proximal'), False, False),  # An inner function.
    (('shrunk', 'smaller'), False, False),
    (('(w)', '(weights)'), False, None),
    (('return x', '# A comment.\n  "A docstring."\n  return x'), False, False),
    (('x * RATE', 'RATE * x'), True, False),
    (('- lam', '+ lam'), True, False),
    (('RATE = 0.1', 'RATE = 0.2'), False, True),
    (('make(0.5)', 'make(0.25)'), False, True),
    (("'plain'", "'curved'"), False, True),
  ],
)
def test_values_are_apart_from_code_and_names_do_not_matter(change, edited, others):
  if others is None:
    change, others = ('w', 'weights'), False
    text = SHRINK.replace('prox(w)', 'prox(v)').replace('shrunk(w)', 'shrunk(v)')
    text = text.replace('lam * w', 'lam * v')
  else:
    text = SHRINK.replace(*change)
  assert text != SHRINK
  before, after = written(SHRINK), written(text)
  assert (digests_of(before) != digests_of(after)) is edited
  assert (values_of(before) != values_of(after)) is others


@pytest.mark.parametrize(
  ('before', 'after'),
  [
    ('f(g(x))', 'g(f(x))'),
    ('f(x) - g(x)', 'g(x) - f(x)'),
    ('f(x)', 'g(x)'),
    ('(lambda a, b: a - b)(x, 2)', '(lambda a, b: b - a)(x, 2)'),
    ('(lambda x: (lambda a, b: x - b))(1)(x, x)',
     '(lambda x: (lambda a, b: x - a))(1)(x, x)'),
    ('jnp.sin(x)', 'jnp.cos(x)'),
    ('x * 0.1', 'x * 0.2'),
  ],
)  # fmt: skip
def test_other_code_has_another_digest(before, after):
  text = """
def f(x):
  return x + 1

def g(x):
  return 2 * x

def both(x):
  return f(x), g(x)

def made(x):
  return both(x), {}
"""
  one, other = written(text.format(before)), written(text.format(after))
  assert digests_of(one) != digests_of(other)
  assert digests_of(one) == digests_of(written(text.format(before)))


def test_functions_of_one_source_differ_by_what_they_hold():
  plain, other = [(lambda w, lam=lam: lam * w) for lam in (1, 2)]
  assert values_of(plain) != values_of(other)
  held = [functools.partial(jnp.add, np.full(3, value)) for value in (1.0, 2.0)]
  assert values_of(held[0]) != values_of(held[1])
  assert values_of(held[0]) == values_of(functools.partial(jnp.add, np.ones(3)))

  def closed(array):
    return jax.jit(lambda w: w + array)

  assert values_of(closed(jnp.ones(3))) == values_of(closed(jnp.ones(3)))
  assert values_of(closed(jnp.ones(3))) != values_of(closed(jnp.zeros(3)))


@pytest.mark.parametrize(
  ('one', 'other'),
  [
    (optax.sgd(0.1), optax.sgd(0.2)),
    (optax.sgd(0.1), optax.sgd(0.1, momentum=0.9)),
    (optax.adamw(0.1), optax.adamw(0.1, weight_decay=0.1)),
    (optax.chain(optax.clip(1.0), optax.sgd(0.1)),
     optax.chain(optax.clip(2.0), optax.sgd(0.1))),
    (optax.sgd(optax.cosine_decay_schedule(0.1, 10)),
     optax.sgd(optax.cosine_decay_schedule(0.1, 20))),
    (fj.local_optimizer('sgd', 0.1), fj.local_optimizer('sgd', 0.2)),
  ],
)  # fmt: skip
def test_optimizers_differ_by_their_numbers(one, other):
  assert values_of(one) == values_of(one)
  assert values_of(one) != values_of(other)
  assert described(one)[1] == []  # Optax is not the user's code.


LOCAL = helpers.local(model='logistic')
SCALE, CLIP = optax.scale(0.1), optax.clip(1.0)
LAYERS = nn.Dense(3), nn.Dense(4)


def holding(x):
  return lambda w: w * x.lr


class Listed(list):
  """A list of the user."""


def sized(sizes):
  return type('Sized', (), {'__module__': __name__, 'sizes': sizes})()


@pytest.mark.parametrize(
  ('one', 'other'),
  [
    # Equal values in other places: fields and arguments that have their defaults are
    # left out.
    (nn.LayerNorm(use_bias=False), nn.LayerNorm(use_scale=False)),
    ({'body': 0.1, 'head': 0.2}, {'head': 0.1, 'body': 0.2}),
    ({('a', 'b'): 0.1}, {('a', 'c'): 0.1}),
    (functools.partial(jnp.sum, axis=1), functools.partial(jnp.sum, keepdims=1)),
    (fj.algorithms.fesem(LOCAL, init_epochs=5),
     fj.algorithms.fesem(LOCAL, init_restarts=5)),
    # The same objects in another order.
    (optax.chain(SCALE, CLIP, SCALE), optax.chain(SCALE, CLIP, CLIP)),
    (nn.Sequential([*LAYERS, LAYERS[0]]), nn.Sequential([*LAYERS, LAYERS[1]])),
    # Values of Python's own types and in them.
    (holding(argparse.Namespace(lr=1)), holding(argparse.Namespace(lr=2))),
    (types.SimpleNamespace(lr=1), types.SimpleNamespace(lr=2)),
    ([range(3)], [range(4)]),
    (Listed([1]), Listed([2])),
    ({('a', 1)}, {('b', 1)}),
    ({'a': 1}.get, {'a': 2}.get),
    (sized((3, 4)), sized((3, 5))),
    (pd.DataFrame({'a': [1, 2]}), pd.DataFrame({'a': [1, 3]})),
    (pd.Series([1, 2]), pd.Series([1, 3])),
  ],
)  # fmt: skip
def test_equal_numbers_in_other_places_are_other_values(one, other):
  assert values_of(one) == values_of(one)
  assert values_of(one) != values_of(other)


@pytest.mark.parametrize(
  ('text', 'old', 'new'),
  [
    ('class C:\n  kinds = {1, 2}\n\ndef made(x):\n  return len(C.kinds)', '2', '3'),
    ('class C:\n  f = jnp.sin\n\ndef made(x):\n  return C.f(x)', 'sin', 'cos'),
    ('class C:\n  f = staticmethod(jnp.sin)\n\ndef made(x):\n  return C.f(x)',
     'sin', 'cos'),
    ('class C:\n  f = functools.partial(jnp.clip, min=0)\n\n'
     'def made(x):\n  return C.f(x)', 'min=0', 'min=1'),
    ('class C:\n  f = functools.partialmethod(pow, 2)\n\n'
     'def made(x):\n  return C().f()', '2', '3'),
    ('class C(enum.Enum):\n  A = 1\n\ndef made(x):\n  return C.A.value', '1', '2'),
    ('@dataclasses.dataclass\nclass C:\n  rate: float = 0.1\n\n'
     'def made(x):\n  return C().rate', '0.1', '0.2'),
    ('@dataclasses.dataclass\nclass C:\n'
     '  rates: list = dataclasses.field(default_factory=lambda: [0.1])\n\n'
     'def made(x):\n  return C().rates[0]', '0.1', '0.2'),
    ('class C(nn.Module):\n  rate: float = 0.1\n\ndef made(x):\n  return C()(x)',
     '0.1', '0.2'),
    ('def made(x):\n  return x * made.rate\n\nmade.rate = 0.1', '0.1', '0.2'),
    ('first = operator.itemgetter(0)\n\ndef made(x):\n  return first(x)', '0', '1'),
    ("held = bytearray(b'a')\n\ndef made(x):\n  return held[0]", "b'a'", "b'b'"),
    ("held = array.array('f', [1])\n\ndef made(x):\n  return held[0]", '1', '2'),
  ],
)  # fmt: skip
def test_values_that_functions_find_in_classes_and_objects_count(text, old, new):
  given = {
    m.__name__: m for m in (array, dataclasses, enum, functools, operator)
  } | {'nn': nn, '__name__': __name__}  # fmt: skip
  one, same, other = (
    described(written(t, **given)) for t in (text, text, text.replace(old, new))
  )
  assert one == same
  assert one != other


def test_what_was_made_is_known_by_what_it_reads_now():
  read = {'scale': 1.0}

  def loss(outputs, y):
    return read['scale'] * LOCAL.model.task.loss(outputs, y)

  model = fj.models.from_flax(nn.Dense(3), (6,), loss=loss)
  before = values_of(model)
  assert values_of(model) == before
  read['scale'] = 2.0
  assert values_of(model) != before


def test_modules_of_the_user_may_have_functions_of_one_name():
  text = 'def used(x):\n  return x * {}'
  uses = 'def made(x):\n  return one.used(other.used(x))'

  def module(name, number):
    made = types.ModuleType(name)
    made.__file__ = f'/home/ann/{name}.py'
    exec(compile(text.format(number), made.__file__, 'exec'), made.__dict__)
    return made

  one, other, edited = module('one', 2), module('other', 3), module('other', 4)
  before = digests_of(written(uses, one=one, other=other))
  assert len(before) == 4  # Three functions and their calls.
  assert before != digests_of(written(uses, one=one, other=edited))


class Net(nn.Module):
  """A model of the user."""

  hidden: int = 5

  @nn.compact
  def __call__(self, x):
    return nn.Dense(3)(nn.relu(nn.Dense(self.hidden)(x)))


def test_models_differ_by_their_sizes():
  nets = [fj.models.from_flax(Net(hidden), (6,)) for hidden in (5, 7, 7)]
  named = [fj.models.build('mlp', (6,), 3, hidden=hidden) for hidden in ((5,), (7,))]
  found = [tuple(values_of(model)) for model in [*nets, *named]]
  assert len(set(found)) == 4
  assert found[1] == found[2]
  assert [name for name, _ in described(nets[0])[1]] == ['Net.__call__', 'calls']


def test_a_method_of_the_package_is_its_name_and_options():
  local = helpers.local(model='logistic')

  def values(name='fesem', made=local, **options):
    return values_of(fj.algorithms.build(name, made, **options))

  found = values(num_clusters=2, prox_lambda=0.1)
  assert found[:3] == ['fesem(num_clusters, prox_lambda)', '2', '0.1']
  assert values_of(fj.algorithms.fesem(local, num_clusters=2, prox_lambda=0.1)) == found
  assert values(num_clusters=3, prox_lambda=0.1) != found
  assert values(num_clusters=2, prox_lambda=0.1, init_epochs=1) == found  # The default.
  assert values(num_clusters=2, prox_lambda=0.1, max_age=3) != found
  other = helpers.local(model='logistic', devices=2, chunk=4)  # No other results.
  assert values(made=other, num_clusters=2, prox_lambda=0.1) == found
  weighted = [values('fed_avg', weighting={'c0': 1.0, 'c1': w}) for w in (1.0, 2.0)]
  assert weighted[0] != weighted[1]


def test_what_replaces_a_part_of_a_method_counts():
  algorithm = fj.algorithms.build('fed_avg', helpers.local(model='logistic'))

  def scaled(rate):
    def step(*args):
      state, info = algorithm.step(*args)
      return jax.tree.map(lambda x: rate * x, state), info

    return algorithm._replace(step=step)

  plain, one, other = map(values_of, (algorithm, scaled(1.0), scaled(0.5)))
  assert plain != one != other
  with pytest.raises(fj.UserError, match='`local` of a method cannot be replaced'):
    algorithm._replace(local=algorithm.local._replace(optimizer=optax.sgd(0.7)))


def config_of(x, **versions):
  values, code = described(x)
  code = [list(each) for each in code]
  found = {'method': values, 'code': code, 'versions': versions}
  return {'seed': 0, 'settings_of_jax': {}} | found


def test_an_edited_function_is_named_and_others_are_not(tmp_path):
  old = config_of(written(SHRINK))
  edited = config_of(written(SHRINK.replace('x * RATE', 'RATE + x')))
  check_same(tmp_path, old, edited)
  (said,) = changes(tmp_path, old, edited)
  assert said.startswith(f'shrunk changed after the run in {tmp_path} had begun')
  assert changes(tmp_path, old, old) == []
  renamed = config_of(written(SHRINK.replace('prox', 'proximal')))
  check_same(tmp_path, old, renamed)
  assert changes(tmp_path, old, renamed) == []
  with pytest.raises(fj.UserError, match=r'`method` \(there: lam=0.5, now: lam=0.2\)'):
    check_same(tmp_path, old, config_of(written(SHRINK.replace('(0.5)', '(0.2)'))))


OTHERS = """
def shrunk(x):
  return x + 0.1

def make(lam):
  def prox(w):
    return shrunk(w) - lam * w
  return prox

def other(lam):
  def prox(w):
    return w / lam
  return prox

def doubled(find):
  return lambda w: 2 * find(w)

made = {}
"""


def test_another_function_is_refused_and_an_edited_one_is_not(tmp_path):
  found = {
    name: config_of(written(OTHERS.format(name))) for name in (
      'make(0.5)', 'other(0.5)', 'doubled(make(0.5))',
    )
  }  # fmt: skip
  one, other, wrapped = found.values()
  for old, new in ((one, other), (one, wrapped), (wrapped, one)):
    with pytest.raises(fj.UserError, match=r'`method` \(its functions: '):
      check_same(tmp_path, old, new)
  # A compiled function may be called once more.
  text = '@jax.jit\ndef half(x):\n  return x * RATE\n\ndef other(x):\n  return {}\n\n'
  text = 'RATE = 0.5\n' + text + 'def made(x):\n  return half(other(x))'
  once, twice = (config_of(written(text.format(what))) for what in ('x', 'half(x)'))
  check_same(tmp_path, once, twice)
  # A part of it may become a function.
  text = OTHERS.replace('shrunk(w) -', 'half(shrunk(w)) -')
  text = 'def half(x):\n  return 0.5 * x\n' + text
  parted = config_of(written(text.format('make(0.5)')))
  check_same(tmp_path, one, parted)
  assert 'make.prox changed' in changes(tmp_path, one, parted)[0]


def test_other_versions_are_said(tmp_path):
  old, new = (config_of(optax.sgd(0.1), python='3.11.2', jax=v) for v in '12')
  check_same(tmp_path, old, new)
  (said,) = changes(tmp_path, old, new)
  assert 'began with jax 1, now 2' in said
  # Python 3.12 has other instructions for the same function.
  old = config_of(written(SHRINK), python='3.11.2')
  new = config_of(written(SHRINK.replace('x * RATE', 'RATE * x')), python='3.12.0')
  (said,) = changes(tmp_path, old, new)
  assert 'python 3.11.2, now 3.12.0' in said


def test_a_workdir_of_an_earlier_version_goes_on_with_a_word(tmp_path, caplog):
  first = simulated_linear('fed_avg', rounds=1, workdir=tmp_path, config=None)
  path = tmp_path / 'config.json'
  config = json.loads(path.read_text())
  kept = 'seed', 'clients_per_round', 'finetune_epochs', 'unseen', 'data_digest'
  old = {name: config[name] for name in kept} | {'program': '0123456789abcdef'}
  path.write_text(json.dumps(old))
  caplog.clear()
  second = simulated_linear('fed_avg', rounds=2, workdir=tmp_path, config=None)
  assert second.history[:1] == first.history
  (said,) = [r.getMessage() for r in caplog.records if 'earlier version' in r.message]
  assert 'make sure that they are those of the run that you continue' in said
  with pytest.raises(fj.UserError, match='`seed`'):
    simulated_linear('fed_avg', rounds=2, workdir=tmp_path, config=None, seed=3)


def test_a_run_of_earlier_code_is_marked(tmp_path):
  plain, wider = (
    written(f'def loss(outputs, y):\n  return {text}', of=LOCAL.model.task.loss)
    for text in ('of(outputs, y)', '2 * of(outputs, y)')
  )

  def found(loss):
    local = LOCAL._replace(model=LOCAL.model._replace(loss=loss))
    method = fj.algorithms.fed_avg(local)
    options = {'rounds': 1, 'workdir': tmp_path, 'finetune_epochs': 0}
    return simulated_linear(method, config=None, **options).summary

  assert 'earlier_code' not in found(plain)
  assert found(wider)['earlier_code'] == ['loss']
  assert json.loads((tmp_path / 'summary.json').read_text())['earlier_code'] == ['loss']
  assert 'earlier_code' not in found(plain)


def test_runs_of_a_command_and_of_python_are_told_apart_in_one_sentence(tmp_path):
  of_python = config_of(optax.sgd(0.1))
  of_flags = {'algorithm': 'fed_avg', 'seed': 0} | {f'flag{i}': i for i in range(50)}
  for old, config, kinds in (
    (of_flags, of_python, 'of a command, and this is one of Python'),
    (of_python, of_flags, 'of Python, and this is one of a command'),
  ):
    with pytest.raises(fj.UserError, match=f'{kinds}. Choose another') as e:
      check_same(tmp_path, old, config)
    assert 'flag7' not in str(e.value)


def test_entries_of_the_users_own_may_have_any_name(tmp_path):
  own = {'method': 'mine', 'model': ['a=1'], 'code': 'v1', 'program': 'train.py'}
  for old in ({'model': ['a=1']}, own):
    check_same(tmp_path, old, old)
    assert changes(tmp_path, old, old) == []
  for other in ({'code': 'v2'}, {'model': ['b=1']}, {'program': 'other.py'}):
    with pytest.raises(fj.UserError, match=f'`{next(iter(other))}`'):
      check_same(tmp_path, own, own | other)
  with pytest.raises(fj.UserError, match=r"there: 20, now: '20'"):
    check_same(tmp_path, {'size': 20}, {'size': '20'})


def test_a_workdir_is_refused_for_other_values_and_data(tmp_path):
  simulated_linear('fed_avg', rounds=1, workdir=tmp_path, config=None)
  algorithm = fj.algorithms.build('fed_avg', helpers.local(hidden=(6,)))
  train, test = federation()
  groups = Groups(np.arange(7, dtype=np.int32) // 4, 2)  # Which are not the true ones.
  for changed, named in (
    ({'method': 'fed_sgd'}, '`method`'),
    ({'method': algorithm}, '`model`'),
    ({'batch_size': 5}, '`training`'),
    ({'data': [helpers.federation([4] * 3, seed) for seed in range(2)]}, 'the data'),
    ({'data': (dataclasses.replace(train, groups=groups), test)}, 'the data'),
  ):
    with pytest.raises(fj.UserError, match=named):
      simulated_linear(**{'method': 'fed_avg'} | changed, workdir=tmp_path, config=None)


def test_iterators_that_functions_use_are_told_of(caplog):
  rates, count = iter([0.1, 0.2]), itertools.count()
  values_of(lambda x: x * next(rates))
  assert '`rates`, which a function of yours uses, is a list_iterator' in caplog.text
  values_of(functools.partial(lambda c, x: x + next(c), count))
  assert 'is a count: what it gives is taken' in caplog.text
  caplog.clear()
  listed = [0.1, 0.2]
  values_of(lambda x: x * listed[0])
  assert not caplog.text


def test_a_workdir_is_refused_for_another_learning_rate(tmp_path):
  old, other = (
    default_config(
      spec(
        fj.algorithms.fed_avg(helpers.local()._replace(optimizer=sgd)),
        *federation(),
        rounds=1,
      )
    )
    for sgd in (optax.sgd(0.1), optax.sgd(0.2))
  )
  check_same(tmp_path, old, old)
  with pytest.raises(fj.UserError, match='`optimizer`'):
    check_same(tmp_path, old, other)
