"""What an accelerator would run, on the CPU: the results are the same."""

import functools

import chex
import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import platforms, tree
from fesem_jax.models import dense_layers
from tests.support import helpers

SHAPE = (12, 12)


def as_on_a_gpu(cpu, accelerator, *args, tpu=None):
  del cpu, tpu
  return accelerator(*args)


def as_on_a_tpu(cpu, accelerator, *args, tpu=None):
  del cpu
  return (tpu or accelerator)(*args)


def trained():
  """FeSEM's state after two rounds with convolutions, and its lowered program."""
  data = helpers.federation([7, 4, 9, 5, 6], groups=np.arange(5) % 2, shape=SHAPE)
  local = helpers.local(chunk=3, shape=SHAPE, model='small_cnn')
  algorithm = algorithms.build('fesem', local, num_clusters=2, init_restarts=2)
  state = jax.jit(algorithm.init)(jax.random.key(0), data)
  cohort = helpers.everyone(data)
  lowered = jax.jit(algorithm.step).lower(state, data, cohort, jax.random.key(0))
  step = lowered.compile()
  for r in range(2):
    state, info = step(state, data, cohort, jax.random.key(r + 1))
  return algorithm.deployed(state, data), info, lowered.as_text()


on_the_cpu = functools.cache(trained)


@pytest.mark.slow
@pytest.mark.parametrize(
  'choose', [as_on_a_gpu, pytest.param(as_on_a_tpu, marks=pytest.mark.nightly)]
)
def test_a_round_is_the_same(choose, monkeypatch):
  on_cpu, cpu_info, cpu_program = on_the_cpu()
  monkeypatch.setattr(platforms, 'choose', choose)
  elsewhere, info, program = trained()
  assert program != cpu_program
  np.testing.assert_array_equal(on_cpu.choice, elsewhere.choice)
  np.testing.assert_allclose(cpu_info.train_loss, info.train_loss, rtol=1e-5)
  chex.assert_trees_all_close(on_cpu.shared, elsewhere.shared, rtol=1e-4, atol=1e-5)


def test_distances_and_dense_layers_are_the_same(monkeypatch):
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  stack, centers = {'w': normal(6, 100, 200)}, {'w': normal(3, 100, 200)}
  x, kernel = normal(10, 30), normal(30, 20)
  dimensions = (((1,), (0,)), ((), ()))
  both = []
  for choose in (platforms.choose, as_on_a_gpu):
    monkeypatch.setattr(platforms, 'choose', choose)
    product = dense_layers.dot_general(x, kernel, dimensions)
    both.append((tree.squared_distances(stack, centers), product))
  for a, b in zip(*both, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
