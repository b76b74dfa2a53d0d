"""A check of a method of one's own, for its test."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort


def check_method(algorithm: Algorithm, train: FederatedData) -> None:
  """Asserts that a round uses its key and counts the clients of its cohort alone.

  It runs single rounds: with two keys, with clients in another order, and with places
  of a cohort that no client takes while the examples of clients outside of it change.
  Models that clients deploy are compared.

  Args:
    algorithm: the method.
    train: a training split that its model fits, of at least two clients with several
      batches each.

  Raises:
    AssertionError: if one of the three does not hold.
  """
  count, size = train.num_clients, algorithm.local.mesh.size
  places = -(-count // size) * size
  keys = jax.random.split(jax.random.key(1), 3)
  state = jax.jit(algorithm.init)(keys[0], train)

  @jax.jit
  def after(state: Any, data: FederatedData, cohort: Cohort, key: jax.Array) -> Any:
    state, _ = algorithm.step(state, data, cohort, key)
    used = algorithm.deployed(state, data)
    return used.params(count) if used.mixture is None else used.mixture

  def cohort(ids: np.ndarray, places: int) -> Cohort:
    padded = np.full(places, count, np.int32)
    padded[: len(ids)] = ids
    return Cohort(jnp.asarray(padded), everyone=False, round=jnp.int32(0))

  everyone = cohort(np.arange(count), places)
  first, second = (after(state, train, everyone, key) for key in keys[1:])
  equal = jax.tree.leaves(jax.tree.map(np.array_equal, first, second))
  assert not all(equal), 'step: ignores its key, so all rounds draw the same'

  order = np.arange(count)[::-1]
  ordered = train.reorder(order)
  start = jax.jit(algorithm.init)(keys[0], ordered)
  moved = after(start, ordered, everyone, keys[1])
  expected = jax.tree.map(lambda x: x[order], first)
  _assert_close(moved, expected, 'step: clients in another order get other models')

  ids = np.arange((count + 1) // 2)
  alone = after(state, train, cohort(ids, -(-len(ids) // size) * size), keys[1])
  x, y = np.array(train.x), np.array(train.y)
  absent = slice(int(train.offsets[len(ids)]), None)
  x[absent], y[absent] = x[:1], y[:1]
  changed = dataclasses.replace(train, x=x, y=y)
  beside = after(state, changed, cohort(ids, places), keys[1])
  beside, alone = (jax.tree.map(lambda x: x[ids], models) for models in (beside, alone))
  _assert_close(beside, alone, 'step: counts absent clients; weigh by Trained.weights')


def _assert_close(models: Any, expected: Any, message: str) -> None:
  for x, y in zip(*map(jax.tree.leaves, (models, expected)), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5, err_msg=message)
