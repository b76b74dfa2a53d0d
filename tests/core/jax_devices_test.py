"""Errors of devices, in sentences."""

import jax
import pytest

from fesem_jax.core import jax_devices


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
def test_memory_that_ends_is_told_in_one_line(monkeypatch, platform):
  monkeypatch.setattr(jax, 'default_backend', lambda: platform)
  monkeypatch.delenv('XLA_PYTHON_CLIENT_PREALLOCATE', raising=False)
  error = RuntimeError('RESOURCE_EXHAUSTED: 9 GiB.\nBFC allocator\nstatistics')
  said = jax_devices.out_of_memory(error)
  assert said.startswith('Not enough memory: RESOURCE_EXHAUSTED: 9 GiB. Train fewer')
  assert '\n' not in said
  assert ('nvidia-smi' in said) == ('MEM_FRACTION' in said) == (platform == 'gpu')
