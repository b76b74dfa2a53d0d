"""Which kernels clients share the start of, and how many train side by side."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import sharding, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.training import shared_kernels
from fesem_jax.training.kernel_change import Kernel
from tests.support import helpers

SIZES = [7, 1, 12, 4, 9, 5]
# Of three batches of four examples: of 6 inputs and 5 outputs.
KERNEL = Kernel(('dense0',), 4, 3, 3)


def centers(count):
  init = jax.jit(jax.vmap(helpers.local().model.init))
  return init(jax.random.split(jax.random.key(0), count))


def test_on_a_cpu_at_most_8_clients_whose_rows_fit_into_the_cache(monkeypatch):
  def count(num_clients, num_centers=1, devices=1):
    local = helpers.local(devices=devices)
    weights = centers(num_centers)
    return shared_kernels.side_by_side(local, (KERNEL,), weights, num_clients)

  assert [count(1), count(3), count(20), count(9, devices=2)] == [1, 3, 8, 5]
  # Two centers of four clients each are best one after the other.
  assert count(8, 2) == 8
  monkeypatch.setattr(shared_kernels, '_CACHED', 3 * 12 * (6 + 5))
  assert count(20) == 3
  monkeypatch.setattr(shared_kernels, '_CACHED', 0)
  assert count(20) == 1


def on_gpu(devices=1):
  device = types.SimpleNamespace(platform='gpu')
  mesh = types.SimpleNamespace(devices=np.array([device] * devices), size=devices)
  return helpers.local()._replace(mesh=mesh)


def test_on_accelerators_as_many_clients_as_fit_into_memory(monkeypatch):
  each = 8 * 12 * (6 + 5) + 24 * (5 + 15 + 3)  # Rows, then all other weights.
  weights = centers(1)
  for free, clients, devices, expected in (
    (5 * each, 20, 1, 5),
    (5 * each - 1, 20, 1, 4),
    (5 * each, 3, 1, 3),
    (5 * each, 7, 2, 4),
    (0, 20, 1, 1),
  ):
    monkeypatch.setattr(sharding, 'memory_for_clients', lambda d, free=free: free)
    local = on_gpu(devices)
    result = shared_kernels.side_by_side(local, (KERNEL,), weights, clients)
    assert result == expected
  # Patches of convolutions, too.
  conv = {'dense0': {'kernel': np.zeros((1, 6, 5))}, 'conv': np.zeros((1, 3, 3, 1, 2))}
  with_patches = 8 * 12 * 11 + 24 * 18 + 120 * 2**20
  for free, expected in ((2 * with_patches, 2), (2 * with_patches - 1, 1)):
    monkeypatch.setattr(sharding, 'memory_for_clients', lambda d, free=free: free)
    assert shared_kernels.side_by_side(on_gpu(), (KERNEL,), conv, 20) == expected


def chosen(num_centers, clients, mode='auto', devices=1, **changes):
  local = helpers.local(chunk=3, devices=devices)
  local = local._replace(shared_start=mode, **changes)
  choice = jnp.arange(clients) % num_centers
  start = ClientModels(centers(num_centers), choice)
  return shared_kernels.choose(local, start, helpers.federation(SIZES), clients)


def test_auto_keeps_kernels_where_clients_of_a_center_are_many(monkeypatch):
  monkeypatch.setattr(shared_kernels, '_LARGE', 30)
  monkeypatch.setattr(shared_kernels, '_ROWS_PER_KERNEL', 12 * (6 + 5) / 30)
  assert chosen(1, 20) == ((KERNEL,), 8)
  assert chosen(6, 6) == ((), 3)
  assert chosen(6, 6, clients_per_shared_start=2)[0] == (KERNEL,)
  both, _ = chosen(6, 6, 'on')
  assert [k.path for k in both] == [('dense0',), ('logits',)]
  # Eight of two centers fill a chunk, but not four on each of two devices.
  assert chosen(2, 8)[0]
  assert not chosen(2, 8, devices=2)[0]
  # Side by side alone, one takes twice the time of many.
  assert not chosen(1, 1)[0]
  assert chosen(1, 2)[0]  # One and a half, as with kernels of its own.


def test_models_that_no_kernel_can_be_taken_of_keep_theirs():
  data, local = helpers.federation(SIZES), helpers.local()._replace(shared_start='on')
  start = ClientModels(centers(2), jnp.arange(6) % 2)
  assert len(shared_kernels.kernels(local, start, data)) == 2
  mixture = ClientModels(centers(2), mixture=jnp.full((6, 2), 0.5))
  assert not shared_kernels.kernels(local, mixture, data)
  for name, value in (('apply_with', None), ('apply_train', local.model.apply)):
    other = local._replace(model=local.model._replace(**{name: value}))
    assert not shared_kernels.kernels(other, start, data)
  personal = ClientModels(personal=tree.repeat(tree.unstack(centers(1), 0), 6))
  assert not shared_kernels.kernels(local, personal, data)
