"""GPUs that JAX does not use: one sentence says why."""

import importlib.metadata

import jax
import pytest

from fesem_jax.core import jax_devices
from fesem_jax.utils.errors import UserError

JAXLIB = importlib.metadata.version('jaxlib')


@pytest.fixture(autouse=True)
def _platforms():
  before = jax.config.values['jax_platforms']
  yield
  jax.config.update('jax_platforms', before)


def machine(monkeypatch, tmp_path, gpu, plugin, platforms=''):
  """A machine with an NVIDIA GPU or none, and a version of the plugin or None."""
  jax.config.update('jax_platforms', platforms)
  for name in ('_GPU', '_DRIVER'):
    path = tmp_path / name
    if gpu:
      path.touch()
    monkeypatch.setattr(jax_devices, name, path)
  found = plugin and ('jax-cuda13-plugin', plugin)
  monkeypatch.setattr(jax_devices, '_plugin', lambda: found)


@pytest.mark.parametrize(
  ('gpu', 'plugin', 'message'),
  [
    (True, None, "For an NVIDIA GPU: pip install 'fesem_jax[cuda]'."),
    (True, '0.4.1', f'jax-cuda13-plugin 0.4.1 does not fit jaxlib {JAXLIB}: pip inst'),
    (True, JAXLIB, f'jax-cuda13-plugin {JAXLIB} did not start: `nvidia-smi` must list'),
    (False, JAXLIB, 'is installed, but this machine shows no NVIDIA GPU or driver'),
    (False, None, None),
  ],
)
def test_a_gpu_that_is_not_used_is_named(
  monkeypatch, tmp_path, caplog, gpu, plugin, message
):
  machine(monkeypatch, tmp_path, gpu, plugin)
  assert jax_devices.devices() == jax.devices()
  said = [text for text in caplog.messages if 'JAX runs on the CPU' in text]
  assert len(said) == (message is not None)
  assert all(message in text for text in said)


def test_the_cpu_was_asked_for(monkeypatch, tmp_path, caplog):
  machine(monkeypatch, tmp_path, True, None, 'cpu')
  jax_devices.devices()
  assert not caplog.messages


@pytest.mark.parametrize(
  ('platforms', 'error', 'message'),
  [
    ('cuda', AssertionError(), "AssertionError). For an NVIDIA GPU: pip install 'fese"),
    ('rocm', RuntimeError('unknown backend\nx'), 'unknown backend). Choose a platform'),
  ],
)
def test_a_platform_that_is_not_there_is_refused(
  monkeypatch, tmp_path, platforms, error, message
):
  def fail():
    raise error

  machine(monkeypatch, tmp_path, False, None, platforms)
  monkeypatch.setattr(jax, 'devices', fail)
  with pytest.raises(UserError) as raised:
    jax_devices.devices()
  assert str(raised.value).startswith(f'JAX_PLATFORMS={platforms}: JAX cannot use it (')
  assert message in str(raised.value)


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
def test_memory_that_ends_is_told_in_one_line(monkeypatch, platform):
  monkeypatch.setattr(jax, 'default_backend', lambda: platform)
  monkeypatch.delenv('XLA_PYTHON_CLIENT_PREALLOCATE', raising=False)
  error = RuntimeError('RESOURCE_EXHAUSTED: 9 GiB.\nBFC allocator\nstatistics')
  said = jax_devices.out_of_memory(error)
  assert said.startswith('Not enough memory: RESOURCE_EXHAUSTED: 9 GiB. Train fewer')
  assert '\n' not in said
  assert ('nvidia-smi' in said) == ('MEM_FRACTION' in said) == (platform == 'gpu')
