"""Chunks of clients, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core.client_map import in_chunks


def test_clients_of_one_group_are_in_chunks_by_decreasing_work():
  work = jnp.array([3, 0, 7, 2, 7], jnp.int32)
  # Two chunks of three, not one of four and one of one.
  order, number = in_chunks(work, 4)
  assert (order.tolist(), number) == ([[2, 4, 0], [3, 1, 5]], 2)
  assert order.dtype == jnp.int32
  assert in_chunks(work[:4], 2)[0].tolist() == [[2, 0], [3, 1]]
  for size in (0, 1):  # A chunk has one client at least.
    alone, number = in_chunks(work, size, jnp.zeros(5, jnp.int32))
    assert (alone.tolist(), number) == ([[2], [4], [0], [3], [1]], 5)
  # Without a limit of groups there is one of them.
  assert in_chunks(work, 2, jnp.zeros(5, jnp.int32))[0].size == 6


def wanted(work, group, num_groups, size):
  """Chunks of clients, which end where a third group would begin."""
  chunks = [[]]
  for g in range(num_groups):
    mine = sorted(np.flatnonzero(group == g), key=lambda i: (-work[i], i))
    if mine and len({group[i] for i in chunks[-1]}) == 2:
      chunks.append([])
    for i in mine:
      if len(chunks[-1]) == size:
        chunks.append([])
      chunks[-1].append(i)
  return [chunk for chunk in chunks if chunk]


def test_chunks_are_of_two_groups_at_the_most():
  rng, arranged = np.random.default_rng(0), jax.jit(in_chunks, static_argnums=(1, 3))
  for size, num_groups, count in ((3, 5, 12), (2, 4, 8), (4, 7, 12), (5, 3, 10)):
    for _ in range(12):
      group = rng.choice(rng.permutation(num_groups)[: rng.integers(1, 8)], count)
      work = rng.integers(0, 4, count)
      order, number = arranged(work, size, group, num_groups)
      want = wanted(work, group, num_groups, size)
      rows = np.asarray(order)
      assert [[i for i in row if i < count] for row in rows[: len(want)]] == want
      assert (rows[len(want) :] == count).all()
      assert rows.shape[1] == size
      assert int(number) == len(want) <= len(rows)


def test_there_is_room_for_every_start_of_a_chunk_before_it_is_full():
  # Groups of one: every third starts a chunk, with one slot of three left free.
  group = jnp.arange(6, dtype=jnp.int32)
  order, number = in_chunks(jnp.ones(6, jnp.int32), 3, group, 6)
  assert order[:3].tolist() == [[0, 1, 6], [2, 3, 6], [4, 5, 6]]
  # Of 6 clients and 2 * 2 slots that may stay free.
  assert (int(number), len(order)) == (3, 4)


@pytest.mark.parametrize(
  ('count', 'size', 'groups', 'most'),
  [
    (8, 4, 3, 3),  # One start of a chunk leaves three slots free at the most.
    (7, 3, 4, 3),  # Also one: the third group begins it, the fourth is the second.
    (7, 3, 5, 4),  # Two of them.
    (7, 3, 2, 3),  # None.
  ],
)
def test_the_most_chunks_have_room_for_the_slots_that_groups_leave_free(
  count, size, groups, most
):
  group = jnp.zeros(count, jnp.int32)
  order, _ = in_chunks(jnp.ones(count, jnp.int32), size, group, groups)
  assert order.shape == (most, size)


def test_clients_that_are_alone_in_their_chunks_need_no_groups():
  group = jnp.array([1, 0, 1, 0], jnp.int32)
  order, number = in_chunks(jnp.array([1, 2, 4, 3]), 1, group, 2)
  assert (order.tolist(), number) == ([[2], [3], [1], [0]], 4)
