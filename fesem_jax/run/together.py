"""Runs side by side: their states and data as one, with a leading axis of runs."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fesem_jax.core import prng_streams
from fesem_jax.core.types import Cohort
from fesem_jax.run.evaluation import Measured
from fesem_jax.run.loop import TrainedRound
from fesem_jax.run.over_runs import Functions, OverRuns, stacked
from fesem_jax.run.preparation import Prepared
from fesem_jax.run.programs import Program, run_often, run_once, wait_for
from fesem_jax.utils import processes, progress_lines

# At most so many rounds in one call: what they report is kept on the devices.
_MOST_ROUNDS = 64


class Together:
  """The states of runs side by side, [R, ...]; see `OnDevices`.

  Args:
    runs: alike but for their keys, data and numbers, before their first round.
    functions: of each of them.
    states_are_read: see `OnDevices`.

  Raises:
    TooLarge: if the programs take more memory than there is.
  """

  def __init__(
    self, runs: Sequence[Prepared], functions: Sequence[Functions], reads: bool
  ):
    self.states_are_read = reads
    self._runs, self._count = runs, len(runs)
    first, self._programs = runs[0], runs[0].programs
    self._algorithm, self._spec = first.algorithm, first.spec
    self._mesh = mesh = first.algorithm.local.mesh
    self._train, self._train_axes = stacked([r.data.train for r in runs], mesh)
    self._test, self._test_axes = stacked([r.data.test for r in runs], mesh)
    named = prng_streams.INIT, prng_streams.ROUNDS, prng_streams.FINETUNE
    keys = [[run.keys[name] for name in named] for run in runs]
    stacks, axes = stacked(keys, mesh)
    self._keys, self._key_axis = stacks, axes[0]
    of_each = zip(*functions, strict=True)
    self._start, self._step, self._measure = (OverRuns.of(f, mesh) for f in of_each)
    self._everyone = first.draw(1).everyone
    self._states: Any = None
    self._clusters: Any = None
    self._compile()

  def _compiled(self, what: str, fn: Any, *args: Any, **options: Any) -> Program:
    over = {'init': self._start, 'step': self._step, 'measure': self._measure}[what]
    axes = str((over.axes, self._train_axes, self._test_axes, self._key_axis))
    key = (what, over.of_one.digest, self._count, self._most, axes)
    return self._programs.compiled(key, fn, *args, wait=False, **options)

  def _compile(self) -> None:
    """Begins to compile the programs.

    With fewer passes small models are trained sooner, as compiling takes most of the
    time of a comparison. Results are promised within rounding only.
    """
    first = self._runs[0]
    made_of = first.algorithm.local, first.data.on_host
    once = run_once(*made_of, self._count)
    often = run_often(*made_of, self._spec.rounds * self._count)
    start = self._start.mapped(self._count, self._key_axis, self._train_axes)

    def of_run(shape: Any) -> NamedSharding:
      spec = getattr(shape.sharding, 'spec', PartitionSpec())
      return NamedSharding(self._mesh, PartitionSpec(None, *spec))

    self._shardings = jax.tree.map(of_run, self._runs[0].shapes)
    shapes = jax.tree.map(
      lambda s, placed: jax.ShapeDtypeStruct(
        (self._count, *s.shape), s.dtype, sharding=placed
      ),
      self._runs[0].shapes, self._shardings,
    )  # fmt: skip
    self._start_program = self._compiled(
      'init', start, self._keys[0], self._train, self._start.numbers,
      out_shardings=(self._shardings, None), **once,
    )  # fmt: skip
    self._rounds_program = self._compiled(
      'step', self._rounds(), shapes, self._train, self._cohorts(1, 1),
      self._keys[1], (np.int32(1), np.int32(1)), self._step.numbers,
      donate_argnums=0, out_shardings=(self._shardings, None), **often,
    )  # fmt: skip
    measure = self._measure.mapped(
      self._count, 0, self._train_axes, self._test_axes, self._key_axis
    )

    def measured(states, train, test, keys, number, numbers):
      return measure(states, train, test, self._folded(keys, number), numbers)

    self._measure_program = self._compiled(
      'measure', measured, shapes, self._train, self._test, self._keys[2],
      np.int32(1), self._measure.numbers,
      **(often if self._spec.eval_every else once),
    )  # fmt: skip

  def _folded(self, keys: jax.Array, number: jax.Array) -> jax.Array:
    if self._key_axis is None:
      return jax.random.fold_in(keys, number)
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)

  @property
  def _most(self) -> int:
    return 1 if self.states_are_read else min(self._spec.rounds, _MOST_ROUNDS)

  def _rounds(self) -> Callable[..., Any]:
    """The function that trains some rounds, and returns what they report."""
    cohort_axes = None if self._everyone else 0
    step = self._step.mapped(
      self._count, 0, self._train_axes,
      Cohort(cohort_axes, self._everyone, None), self._key_axis,
    )  # fmt: skip

    def rounds(states, train, ids, keys, which, numbers):
      first, count = which

      def one(i: jax.Array, states: Any) -> Any:
        of_round = ids if self._everyone else ids[i]
        cohort = Cohort(of_round, self._everyone, first + i - 1)
        own = self._folded(keys, first + i)
        states, info, *clusters = step(states, train, cohort, own, numbers)
        info = info._replace(updates=None)  # For decisions on the host.
        return states, info, clusters[0] if clusters else None

      def body(i: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        states, outputs = carry
        states, *new = one(i, states)
        write = jax.lax.dynamic_update_index_in_dim
        return states, jax.tree.map(lambda a, x: write(a, x, i, 0), outputs, new)

      shapes = jax.eval_shape(one, first, states)[1:]
      outputs = jax.tree.map(
        lambda s: jnp.zeros((self._most, *s.shape), s.dtype), list(shapes)
      )
      return jax.lax.fori_loop(0, count, body, (states, outputs))

    return rounds

  def _cohorts(self, number: int, count: int) -> Any:
    """Clients of rounds: [S] int32 if all take part, or [rounds, R, S]."""
    if self._everyone:
      return self._runs[0].draw(1).ids
    drawn = [[r.draw(number + i).ids for r in self._runs] for i in range(count)]
    return np.stack([np.stack(drawn[min(i, count - 1)]) for i in range(self._most)])

  def begin(self) -> float:
    """Makes the first states; returns the seconds that it took."""
    wait_for(self._start_program, self._rounds_program, self._measure_program)
    began = time.perf_counter()
    with progress_lines.waiting_for('first models and clusters'):
      self._states, clusters = self._start_program(
        self._keys[0], self._train, self._start.numbers
      )
      self._clusters = processes.on_host(clusters)
    return time.perf_counter() - began

  def assignments(self) -> list[np.ndarray | None]:
    """[M] int32 cluster that each client deploys from at the start, of each run."""
    return [None if self._clusters is None else c for c in self._each(self._clusters)]

  def _each(self, results: Any) -> list[Any]:
    """Results [R, ...] on the host, run by run."""
    return [jax.tree.map(lambda x, r=r: x[r], results) for r in range(self._count)]

  def train(self, number: int) -> list[list[TrainedRound]]:
    """Trains the rounds up to the next one after which something is due."""
    began, spec = time.perf_counter(), self._spec
    ahead = spec.rounds - number + 1
    if spec.eval_every:
      ahead = min(ahead, spec.eval_every - (number - 1) % spec.eval_every)
    count = min(ahead, self._most)
    self._states, outputs = self._rounds_program(
      self._states, self._train, self._cohorts(number, count), self._keys[1],
      (np.int32(number), np.int32(count)), self._step.numbers,
    )  # fmt: skip
    outputs = processes.on_host(outputs)
    # Each run takes its share of the time.
    seconds = (time.perf_counter() - began) / count / self._count
    rounds = [jax.tree.map(lambda x, i=i: x[i], outputs) for i in range(count)]
    return [
      [
        TrainedRound(run.draw(number + i), info, clusters, seconds)
        for run, (info, clusters) in zip(self._runs, self._each(results), strict=True)
      ]
      for i, results in enumerate(rounds)
    ]

  def measure(self, number: int) -> list[Measured]:
    """Measures what clients deploy after the round `number`, of each run."""
    with progress_lines.waiting_for('evaluating'):
      results = processes.on_host(
        self._measure_program(
          self._states,
          self._train,
          self._test,
          self._keys[2],
          np.int32(number),
          self._measure.numbers,
        )
      )
    each = zip(self._runs, self._each(results), strict=True)
    return [run.evaluation.measured(own) for run, own in each]

  def state(self, run: int) -> Any:
    """The state of a run, placed as in a run alone."""

    def take(states: Any, run: jax.Array) -> Any:
      return jax.tree.map(
        lambda x: jax.lax.dynamic_index_in_dim(x, run, 0, keepdims=False), states
      )

    shardings = jax.tree.map(lambda s: s.sharding, self._runs[0].shapes)
    program = self._programs.compiled(
      ('state of one', self._algorithm), take, self._states, np.int32(run),
      out_shardings=shardings,
    )  # fmt: skip
    return program(self._states, np.int32(run))
