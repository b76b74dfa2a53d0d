"""Functions of one run, mapped over runs that differ in arrays and numbers alone."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.evaluation import measure_with
from fesem_jax.run.preparation import Prepared
from fesem_jax.run.rounds import step_of
from fesem_jax.run.traced import Traced
from fesem_jax.utils import progress_lines


def stacked(trees: Sequence[Any], mesh: Mesh) -> tuple[Any, Any]:
  """Trees of R runs as one, and the axes of its arrays for `jax.vmap`.

  Arrays that all runs have in common stay as they are, and their axis is None.
  """
  leaves, structures = zip(*map(jax.tree.flatten, trees), strict=True)
  stacks = [_stacked(each, mesh) for each in zip(*leaves, strict=True)]
  axes = jax.tree.unflatten(structures[0], [axis for _, axis in stacks])
  return jax.tree.unflatten(structures[0], [array for array, _ in stacks]), axes


def _stacked(arrays: Sequence[Any], mesh: Mesh) -> tuple[Any, int | None]:
  first = arrays[0]
  if all(array is first for array in arrays):
    return first, None
  is_key = jax.dtypes.issubdtype(first.dtype, jax.dtypes.prng_key)
  held = [np.asarray(jax.random.key_data(x) if is_key else x) for x in arrays]
  if all(np.array_equal(x, held[0]) for x in held):
    return first, None
  whole = sharding.replicate(np.stack(held), mesh)
  if is_key:
    whole = jax.random.wrap_key_data(whole, impl=jax.random.key_impl(first))
  return whole, 0


class OverRuns(NamedTuple):
  """A function of one run, as traced for each of R runs."""

  of_one: Traced
  numbers: Any  # of the R runs; see `stacked`
  axes: Any  # of the numbers

  @classmethod
  def of(cls, each: Sequence[Traced], mesh: Mesh) -> 'OverRuns':
    """The function, from that of each run; they differ in their numbers alone."""
    return cls(each[0], *stacked([one.numbers for one in each], mesh))

  def mapped(self, count: int, *axes: Any) -> Callable[..., Any]:
    """(*args, numbers) -> the results [R, ...] of the R runs, of args with `axes`."""
    return jax.vmap(self.of_one, in_axes=(*axes, self.axes), axis_size=count)


class Functions(NamedTuple):
  """The functions of a run that are mapped over runs."""

  start: Traced  # (key, train) -> state, clusters that clients deploy from
  step: Traced  # (state, train, cohort, key) -> state, info and, if not there, clusters
  measure: Traced  # (state, train, test, key) -> see `measure_with`

  @property
  def digests(self) -> tuple[str, ...]:
    """Equal for runs that differ in numbers alone."""
    return tuple(traced.digest for traced in self)


def functions_of(run: Prepared) -> Functions:
  """The functions of a run, traced once for runs of one algorithm."""
  algorithm, spec, data = run.algorithm, run.spec, run.data
  wants_clients, finetune_epochs = spec.wants_clients, spec.finetune_epochs
  key, cohort = run.keys[prng_streams.INIT], run.draw(1)
  derives = run.like.clusters is None and _has_clusters(run)

  def clusters(state: Any, train: FederatedData) -> jax.Array | None:
    return algorithm.deployed(state, train).clusters()

  def step(*args: Any) -> tuple[Any, Any, Any]:
    state, info = step_of(algorithm, wants_clients)(*args)
    return state, info, clusters(state, args[1]) if derives else None

  def traced() -> Functions:
    init = Traced.of(algorithm.init, key, data.train)  # As the rehearsal traced it.

    def start(key: jax.Array, train: FederatedData) -> tuple[Any, Any]:
      state = init(key, train, init.numbers)
      return state, clusters(state, train)

    of_step = run.shapes, data.train, cohort, key
    of_measure = run.shapes, data.train, data.test, key
    measure = measure_with(algorithm, finetune_epochs)
    plain = not (derives or wants_clients)
    return Functions(
      Traced.of(start, key, data.train),
      Traced(run.traced) if plain else Traced.of(step, *of_step),
      Traced.of(measure, *of_measure),
    )

  name = 'of many runs', algorithm, finetune_epochs, wants_clients
  with progress_lines.waiting_for('tracing runs side by side'):
    return run.programs.once(name, traced, data.train, data.test, cohort)


def _has_clusters(run: Prepared) -> bool:
  """True if clients deploy from clusters."""
  deployed = run.algorithm.deployed
  return jax.eval_shape(deployed, run.shapes, run.data.train).has_clusters()


def looks_at_states(algorithm: Algorithm, is_read: bool) -> bool:
  """True if every round needs the states; `is_read` is whether callbacks do."""
  known = algorithm.traffic is not None and algorithm.traffic.known is not None
  return is_read or known
