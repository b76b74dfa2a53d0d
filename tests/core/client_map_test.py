"""Work on the clients of a cohort, whatever the chunks and devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core import batching, client_map, sharding
from tests.support.nights import rest_by_night

WORK = np.array([3, 0, 7, 2, 7], np.int32)


def mapped(body, size, work=WORK, sums=None, *, own=None, **more):
  """`map_clients` on one device, of clients that are numbered by their place."""
  count = len(work)
  return client_map.map_clients(
    lambda _, ids, own, old, sums: body(ids, own, old, sums),
    jnp.arange(count), jnp.asarray(work), own, None, per_chunk=size,
    empty=count, mesh=sharding.client_mesh(1), sums=sums, **more,
  )  # fmt: skip


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('clients_per_chunk', rest_by_night([1, 2, 4], by_day=2))
def test_each_client_meets_its_own_part_and_the_whole_of_what_is_shared(
  clients_per_chunk, devices
):
  mesh = sharding.client_mesh(devices)
  ids = np.array([4, 9, 0, 6, 2, 9], np.int32)  # 9 is an empty place.
  own = jnp.arange(6.0)
  shared = jnp.arange(9.0) * 100

  def body(shared, ids, own, old, total):
    exists = ids < 9
    mine = shared.at[ids].get(mode='clip') + own
    return mine, total + jnp.where(exists, mine, 0.0).sum()

  results, total = client_map.map_clients(
    body, ids, jnp.asarray([1, 0, 5, 2, 2, 0]), own, shared,
    per_chunk=clients_per_chunk, empty=9, mesh=mesh, sums=jnp.float32(0),
  )  # fmt: skip
  exists = ids < 9
  want = (np.asarray(shared)[ids * exists] + np.asarray(own))[exists]
  np.testing.assert_array_equal(np.asarray(results)[exists], want)
  assert total == want.sum()


@pytest.mark.parametrize('size', [1, 2, 3])
def test_one_client_is_mapped_like_many(size):
  def fn(x, y):
    return {'sum': x + y, 'shape': jnp.int32(x.ndim)}

  x, y = jnp.arange(2.0 * size).reshape(size, 2), jnp.ones((size, 2))
  actual = client_map.side_by_side(fn, size)(x, y)
  np.testing.assert_array_equal(actual['sum'], x + 1)
  np.testing.assert_array_equal(actual['shape'], [1] * size)


@pytest.mark.parametrize('clients_per_part', [1, 2, 3, 9])
@pytest.mark.parametrize('clients_per_chunk', [1, 3, 4, 9])
def test_results_of_parts_are_written_in_order_and_empty_places_finish_nothing(
  clients_per_chunk, clients_per_part
):
  groups, old = jnp.array([0, 1, 2, 1, 0]), jnp.full(5, -1.0)
  width = -(-5 // -(-5 // clients_per_chunk))
  sizes = range(1, min(width, clients_per_part) + 1)

  def body(ids, own, old, total):
    return ((ids, own), own.max()), total

  def finish(clients, largest, total):
    ids, own = clients
    exists = ids < len(WORK)
    assert len(own) == max(size for size in sizes if width % size == 0)
    return (2 * own, largest - own), total + jnp.array([1, (exists * own).sum()])

  def run(old):
    return mapped(
      body, clients_per_chunk, part=clients_per_part, num_groups=3, sums=jnp.zeros(2),
      own=jnp.arange(10.0, 15.0), into=(old, None), group=groups, finish=finish,
    )  # fmt: skip

  (doubled, below), (parts, total) = jax.jit(run)(old)
  np.testing.assert_array_equal(doubled, 2 * np.arange(10.0, 15.0))
  assert total == 60
  assert (np.asarray(below) >= 0).all()
  if clients_per_part == 1:
    assert parts == 5


@pytest.mark.parametrize(
  ('work', 'in_turn'),
  [
    ([3, 3, 3, 3], 0), ([9, 400, 9, 9], 1), ([9, 400, 9, 300], 2), ([4, 3, 2, 1], 0),
    ([0, 0, 0, 0], 0), ([5], 0),
  ],
)  # fmt: skip
def test_clients_of_much_more_work_train_in_turn(work, in_turn):
  def fn(work, x):
    beside = jax.lax.axis_size(batching.SIDE)
    return jax.lax.fori_loop(0, work, lambda i, x: x + 1, x), jnp.int32(beside)

  rows = jnp.arange(2.0 * len(work)).reshape(-1, 2)
  by_work = jax.jit(functools.partial(client_map.by_work, fn), static_argnums=2)
  result, beside = by_work(jnp.array(work), (rows,), True)
  np.testing.assert_array_equal(result, rows + np.array(work)[:, None])
  alone = [i for i, count in enumerate(beside.tolist()) if count == 1]
  if len(work) > 1:
    assert sorted(alone) == sorted(np.argsort(work)[::-1][:in_turn].tolist())
  plain, beside = by_work(jnp.array(work), (rows,), False)
  np.testing.assert_array_equal(result, plain)
  assert (beside == len(work)).all()


def chunks_of(work, group, num_groups, size):
  """Chunks of clients, which end where a third group would begin."""
  chunks = [[]]
  for g in range(num_groups):
    members = sorted(np.flatnonzero(group == g), key=lambda i: (-work[i], i))
    if members and len({group[i] for i in chunks[-1]}) == 2:
      chunks.append([])
    for i in members:
      if len(chunks[-1]) == size:
        chunks.append([])
      chunks[-1].append(i)
  return [chunk for chunk in chunks if chunk]


@pytest.mark.parametrize(
  ('size', 'num_groups', 'count'),
  [(3, 5, 12), (2, 4, 8), (4, 7, 12), (5, 3, 10), (1, 2, 4), (3, 1, 7), (3, 6, 6)],
)
def test_chunks_are_of_two_groups_at_the_most(size, num_groups, count):
  rng = np.random.default_rng(0)
  in_chunks = jax.jit(client_map.in_chunks, static_argnums=(1, 3))
  for _ in range(12):
    group = rng.choice(rng.permutation(num_groups)[: rng.integers(1, 8)], count)
    work = rng.integers(0, 4, count)
    order, number = in_chunks(work, size, group, num_groups)
    expected = chunks_of(
      work, np.zeros(count) if size == 1 else group, num_groups, size
    )
    rows = np.asarray(order)
    result = [[i for i in row if i < count] for row in rows[: len(expected)]]
    assert result == expected
    assert (rows[len(expected) :] == count).all()
    assert int(number) == len(expected) <= len(rows)


def test_clients_of_one_group_leave_few_places_empty():
  work = jnp.array([3, 0, 7, 2, 7], jnp.int32)
  # Two chunks of three, not one of four and one of one.
  order, number = client_map.in_chunks(work, 4)
  assert (order.tolist(), number) == ([[2, 4, 0], [3, 1, 5]], 2)
  assert client_map.in_chunks(work, 0)[0].tolist() == [[2], [4], [0], [3], [1]]
