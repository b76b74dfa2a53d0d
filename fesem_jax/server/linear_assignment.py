"""The linear assignment problem, solved inside a compiled program.

SciPy's solver lives on the host: `jax.pure_callback` with arguments of more than a few
KB deadlocks where two CPU devices call it at once. Optax's starts with no row assigned.
"""

import jax
import jax.numpy as jnp

# Stands for costs that are not finite, which would never let a search end.
_LARGEST = 1e30


def solve(cost: jax.Array) -> jax.Array:
  """[n] int32 column of each row of `cost` [n, n] whose sum of costs is least."""
  # Columns go to the rows that they suit best, if free; the rows left look for shortest
  # augmenting paths one by one (Jonker and Volgenant, 1987).
  cost = jnp.nan_to_num(cost, nan=_LARGEST).clip(-_LARGEST, _LARGEST)
  rows = jnp.arange(cost.shape[0], dtype=jnp.int32)
  is_identity = (jnp.diagonal(cost) <= cost.min(axis=1)).all()
  return jax.lax.cond(is_identity, lambda: rows, lambda: _augment_all(cost, rows))


def _augment_all(cost: jax.Array, rows: jax.Array) -> jax.Array:
  """`solve` where rows [n], 0..n-1, do not do; costs are finite."""
  free = jnp.int32(len(rows))
  prices = cost.min(axis=0)
  best = jnp.argmin(cost - prices[None], axis=1).astype(jnp.int32)
  row_of = jnp.full(len(rows), free).at[best].min(rows)
  column_of = jnp.where(row_of[best] == rows, best, free)

  def has_free(state):
    return (state[2] == free).any()

  def augment(state):
    prices, row_of, column_of = state
    start = jnp.argmax(column_of == free).astype(jnp.int32)
    # Under vmap, a problem that is solved takes part until all are: it must not search.
    is_solved = ~has_free(state)
    prices, via, end = _shortest_path(cost, prices, row_of, start, is_solved)

    def assign(path):
      row_of, column_of, column = path
      row = via[column]
      next_column = jnp.where(row == start, free, column_of[row])
      return row_of.at[column].set(row), column_of.at[row].set(column), next_column

    def is_on_path(path):
      return path[2] != free

    path = jax.lax.while_loop(is_on_path, assign, (row_of, column_of, end))
    return prices, path[0], path[1]

  state = jax.lax.while_loop(has_free, augment, (prices, row_of, column_of))
  return state[2]


def _shortest_path(
  cost: jax.Array,
  prices: jax.Array,
  row_of: jax.Array,
  start: jax.Array,
  skip: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Dijkstra's search: new prices [n], the row before each column, the free column."""
  num_rows = len(prices)
  free = jnp.int32(num_rows)

  def searching(search):
    return search[-1] == free

  def visit(search):
    length, via, visited, row, base, _ = search
    through = jax.lax.dynamic_index_in_dim(cost, row, 0, False) - prices - base
    better = (through < length) & ~visited
    length = jnp.where(better, through, length)
    via = jnp.where(better, row, via)
    nearest = jnp.argmin(jnp.where(visited, jnp.inf, length)).astype(jnp.int32)
    visited = visited.at[nearest].set(True)
    row = row_of[nearest]
    base = cost.at[row, nearest].get(mode='clip') - prices[nearest] - length[nearest]
    return length, via, visited, row, base, jnp.where(row == free, nearest, free)

  unreached = jnp.full(num_rows, jnp.inf)
  via, visited = jnp.zeros(num_rows, jnp.int32), jnp.zeros(num_rows, bool)
  end = jnp.where(skip, 0, free)
  search = unreached, via, visited, start, jnp.float32(0), end
  length, via, visited, _, _, end = jax.lax.while_loop(searching, visit, search)
  return prices + jnp.where(visited, length - length[end], 0.0), via, end
