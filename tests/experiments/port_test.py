"""experiments.port turns a state_dict into a file, and compares logits."""

import numpy as np
import pytest

from fesem_jax import models
from fesem_jax.run.results import export
from tests.models.porting_test import recurrent
from tests.support.commands import call

RNG = np.random.default_rng(0)
STATE = {
  '0.weight': RNG.normal(size=(8, 64)), '0.bias': RNG.normal(size=8),
  '2.weight': RNG.normal(size=(10, 8)), '2.bias': RNG.normal(size=10),
}  # fmt: skip
X = RNG.random((5, 1, 8, 8))
LOGITS = (
  np.maximum(X.reshape(5, 64) @ STATE['0.weight'].T + STATE['0.bias'], 0)
  @ STATE['2.weight'].T + STATE['2.bias']
)  # fmt: skip


@pytest.fixture
def files(tmp_path):
  np.savez(tmp_path / 'net.npz', **STATE)
  np.savez(tmp_path / 'logits.npz', x=X, logits=LOGITS)
  np.savez(tmp_path / 'other.npz', x=X, logits=LOGITS + 1)
  return tmp_path


def port(files, *args):
  return call(
    'port', '--model=mlp', '--hidden=8', '--example_shape=8,8',
    '--num_classes=10', f'--state_dict={files / "net.npz"}',
    f'--output={files / "net.msgpack"}', *args, cwd=files,
  )  # fmt: skip


def test_a_file_to_start_from_is_written_once_logits_agree(files):
  done = port(files, f'--check={files / "logits.npz"}')
  assert done.returncode == 0, done.stderr
  assert '5 examples: logits agree' in done.stdout
  held = export.read(files / 'net.msgpack')
  np.testing.assert_allclose(held['dense0/kernel'], STATE['0.weight'].T, rtol=1e-6)
  model = models.build('mlp', (8, 8), 10, (8,))
  params = {
    layer: {n: held[f'{layer}/{n}'] for n in ('kernel', 'bias')}
    for layer in ('dense0', 'logits')
  }
  x = X[:, 0].astype(np.float32)
  np.testing.assert_allclose(model.apply(params, x), LOGITS, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    (['--model=owns'], 'owns'),
    (['--model=gru', '--model_options=wide=3'], '--model_options: '),
  ],
)
def test_models_and_options_are_those_of_the_package(files, args, message):
  assert message in port(files, *args).stderr


def test_nothing_is_written_where_logits_differ(files):
  done = port(files, f'--check={files / "other.npz"}')
  assert done.returncode == 1
  assert 'error: --check: ' in done.stderr
  assert not (files / 'net.msgpack').exists()


def test_logits_at_every_position_are_compared(tmp_path):
  shapes = {'embedding.weight': (5, 8), 'fc.weight': (5, 16), 'fc.bias': (5,)}
  for layer, inputs in enumerate((8, 16)):
    for of, width in (('ih', inputs), ('hh', 16)):
      shapes[f'rnn.weight_{of}_l{layer}'] = (48, width)
      shapes[f'rnn.bias_{of}_l{layer}'] = (48,)
  state = {name: RNG.normal(0, 0.1, shape) for name, shape in shapes.items()}
  x = np.array([[0, 3], [4, 1]])
  logits = [[recurrent('gru', state, row[: i + 1]) for i in range(2)] for row in x]
  np.savez(tmp_path / 'net.npz', **state)
  np.savez(tmp_path / 'logits.npz', x=x, logits=logits)
  args = (
    '--model=gru', '--example_shape=2', '--num_classes=5', '--state_dict=net.npz',
    '--check=logits.npz', '--output=net.msgpack', '--model_options=width=16',
  )  # fmt: skip
  done = call('port', *args, '--task=sequence', cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert '2 examples: logits agree' in done.stdout


def test_mistakes_are_named(files):
  assert '--model: is missing' in call('port', cwd=files).stderr
  assert 'absent.npz' in port(files, '--check=absent.npz').stderr
  assert not (files / 'net.msgpack').exists()


def test_a_model_of_ones_own_is_ported(files, monkeypatch):
  (files / 'own_net.py').write_text(
    'from fesem_jax import models\n'
    'def net(example_shape, num_classes, *, width=4):\n'
    "  return models.build('mlp', example_shape, num_classes, (width,))\n"
  )
  monkeypatch.syspath_prepend(str(files))
  check = f'--check={files / "logits.npz"}'
  done = port(files, '--model=own_net:net', '--model_options=width=8', check)
  assert done.returncode == 0, done.stderr
  assert '5 examples: logits agree' in done.stdout
  assert 'dense0/kernel' in export.read(files / 'net.msgpack')
