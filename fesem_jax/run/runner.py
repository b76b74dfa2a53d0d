"""Programs of the runs of a method: the start, the rounds and the evaluation."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fesem_jax.algorithms.wrappers.client_memory import (
  kept_parts,
  with_client_memory,
)
from fesem_jax.core import hyperparameters, offloading, prng_streams, sharding
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import Arguments
from fesem_jax.core.sharding import CLIENTS
from fesem_jax.core.types import Cohort
from fesem_jax.evaluation import evaluate
from fesem_jax.run import programs
from fesem_jax.run.programs import Program, run_often, run_once, shape_of, with_passes
from fesem_jax.run.spec import Spec
from fesem_jax.training.cohort import record_calls
from fesem_jax.utils.errors import check

Splits = tuple[FederatedData, FederatedData]
# An algorithm, built once for runs that differ in its numbers; and these numbers.
Method = tuple[Algorithm, Arguments]


def with_memory(algorithm: Algorithm) -> Algorithm:
  """The method with what its clients keep from round to round beside its state."""
  if not kept_parts(algorithm.local):
    return algorithm
  key = 'with memory', algorithm
  return programs.once(key, lambda: with_client_memory(algorithm))


def method_of(spec: Spec) -> Method:
  """The method of a run; runs whose values are arguments of programs share it."""
  if spec.make is None or not spec.values:
    algorithm = with_memory(spec.algorithm)
    return algorithm, programs.once(('arguments', algorithm), Arguments)
  methods = programs.once(('methods', spec.method or spec.make), list[Method])
  for method in methods:
    decisions = method[1].decisions
    if decisions is not None and decisions.hold_for(spec.values):
      return method
  numbers, decisions = hyperparameters.named(spec.values)
  methods.append((with_memory(spec.make(**numbers)), Arguments(decisions)))
  return methods[-1]


def placed_state(algorithm: Algorithm, train: FederatedData, shapes: Any) -> Any:
  """Shapes of a method's state, placed as in a run: stacks are split by client."""
  whole = NamedSharding(algorithm.local.mesh, PartitionSpec())
  split = NamedSharding(algorithm.local.mesh, PartitionSpec(CLIENTS))

  def place(s: Any) -> Any:
    return s.update(sharding=split if is_stack(s, train) else whole)

  return offloading.placed(jax.tree.map(place, shapes), algorithm.local.mesh)


def is_stack(x: Any, data: FederatedData) -> bool:
  """True if an array of a state, or its shape, is a stack of all clients' models."""
  return x.ndim > 1 and x.shape[0] == data.num_clients


class Runner:
  """The start, the rounds and the evaluation of R = `count` runs, each compiled once.

  Each run has a seed, data and hyperparameters of its own. Arrays of R = 1 are those of
  a run; others have a leading axis of runs. `axes` are 0 for arrays of the splits that
  R > 1 runs do not share, or None. A call trains up to `most` rounds. Holds no data and
  no states.
  """

  def __init__(
    self,
    spec: Spec,
    method: Method,
    splits: Splits,
    cohort: Cohort,
    axes: Sequence[int | None],
    count: int,
    most: int,
  ):
    self.algorithm, self.arguments = method
    self.count, self.most, self._axes = count, most, axes
    self._clients, self._epochs = spec.wants_clients, spec.finetune_epochs
    self._cohort, local = cohort, self.algorithm.local
    self._mesh, sends = local.mesh, local.sends
    self._is_noised = sends is not None and sends.server is not None
    # Traced once: for shapes, for identities and for programs.
    start, step = (jax.jit(f, inline=True) for f in (self._start, self._step))
    self._functions = start, step, self.measure
    whole = NamedSharding(self._mesh, PartitionSpec())
    keys = [jax.eval_shape(lambda: jax.random.key(0)).update(sharding=whole)] * 3
    numbers: Any = self.arguments.values(self.arguments.first)
    if count > 1:  # As in the programs of all runs, so that `step` is traced once.
      numbers = jax.tree.map(lambda x: shape_of(jnp.asarray(x), whole), numbers)
    self._one = jax.tree.map(shape_of, (keys, numbers, *splits))
    keys, numbers, train, _ = self._one
    self._split_axes: Any = None, None
    if count > 1:
      self._split_axes = jax.tree.unflatten(jax.tree.structure(splits), axes)
    state, _ = jax.eval_shape(start, keys[0], train, numbers)
    self.shape = placed_state(self.algorithm, train, state)  # of a run
    self._shapes = jax.tree.map(self._of_all, self.shape)
    self._shardings = jax.tree.map(lambda s: s.sharding, self._shapes)
    # A method's objections are raised here, before anything is written.
    step_args = self.shape, train, cohort, keys[1], numbers
    with record_calls() as calls:
      self.traced = step.trace(*step_args)
    self.trainings = len(calls)  # of a client in a round
    self.deployed = jax.eval_shape(self._deployed, self.shape, train, numbers)
    _check_deployed(self.deployed, train.num_clients)
    self._once, self._often = run_once(local, spec.train, count), dict[str, Any]()
    if count > 1:
      self._often = run_often(local, spec.train, spec.rounds * count)
    self._rarely = self._often if spec.eval_every or count == 1 else self._once

  def _start(self, key: jax.Array, train: FederatedData, numbers: Any) -> Any:
    """The first state of a run, and the clusters that clients deploy from."""
    state = self.arguments.bind(numbers, self.algorithm.init, key, train)
    return state, self._clusters(state, train, numbers)

  def _deployed(self, state: Any, train: FederatedData, numbers: Any) -> ClientModels:
    deployed = self.algorithm.deployed
    used: ClientModels = self.arguments.bind(numbers, deployed, state, train)
    return used

  def _clusters(self, state: Any, train: FederatedData, numbers: Any) -> Any:
    """[M] int32 cluster that each client deploys from; None without clusters."""
    return self._deployed(state, train, numbers).clusters()

  def _step(
    self,
    state: Any,
    train: FederatedData,
    cohort: Cohort,
    key: jax.Array,
    numbers: Any,
  ) -> Any:
    """A round: the state, what the method reports, clusters if it reports none."""
    args, between = (state, train, cohort, key), self.algorithm.between
    state, info = self.arguments.bind(numbers, self.algorithm.step, *args)
    if self._is_noised and info.clusters is not None:  # Eq. 6 would be of other models.
      clusters = info.clusters._replace(objective=None, objective_parts=None)
      info = info._replace(clusters=clusters)
    updates = None if between is None else info.updates
    clients = info.clients if self._clients else None
    info = info._replace(clients=clients, updates=updates)
    derives = info.clusters is None and between is None
    return state, info, self._clusters(state, train, numbers) if derives else None

  def measure(
    self,
    state: Any,
    train: FederatedData,
    test: FederatedData,
    key: jax.Array,
    numbers: Any,
  ) -> Any:
    """`evaluate_clients` of what a run deploys, and its clusters."""

    def measured() -> Any:
      used, local = self.algorithm.deployed(state, train), self.algorithm.local
      totals = evaluate.evaluate_clients(used, local, train, test, key, self._epochs)
      return totals, used.clusters()

    return self.arguments.bind(numbers, measured)

  @property
  def is_offloaded(self) -> bool:
    """True if some of a state is in the memory of the host."""
    leaves = jax.tree.leaves(self.shape, is_leaf=offloading.is_offloaded)
    return any(map(offloading.is_offloaded, leaves))

  def _of_all(self, s: Any) -> Any:
    """The shape of an array of R runs, from that of one."""
    if self.count == 1:
      return s
    spec, shape = getattr(s.sharding, 'spec', ()), (self.count, *s.shape)
    placed = NamedSharding(self._mesh, PartitionSpec(None, *spec))
    return jax.ShapeDtypeStruct(shape, s.dtype, sharding=placed, weak_type=s.weak_type)

  def _over(self, function: Callable[..., Any], *axes: Any) -> Callable[..., Any]:
    """A function of one run, over all of them."""
    if self.count == 1:
      return function
    return jax.vmap(function, in_axes=axes, axis_size=self.count)

  @functools.cached_property
  def calls(self) -> list[tuple[Any, ...]]:
    """What, function, arguments and options: start, rounds and evaluation."""
    keys, numbers, *splits = self._one
    keys, numbers = jax.tree.map(self._of_all, (keys, numbers))
    if self.count > 1:
      flat, form = jax.tree.flatten(splits)
      pairs = zip(flat, self._axes, strict=True)
      arrays = [x if a is None else self._of_all(x) for x, a in pairs]
      splits = jax.tree.unflatten(form, arrays)
    (train, test), (train_axes, test_axes) = splits, self._split_axes
    cohorts, round_keys, more = self._cohort, keys[1], tuple[Any, ...]()
    start, rounds, measure = cast(list[Callable[..., Any]], self._functions)
    start = self._over(start, 0, train_axes, 0)
    if self.count > 1:
      axis = dataclasses.replace(
        cohorts, ids=None if cohorts.everyone else 0, round=None
      )
      rounds = self._over(rounds, 0, train_axes, axis, 0, 0)
      rounds = functools.partial(self._rounds, rounds)
      measure = self._over(measure, 0, train_axes, test_axes, 0, 0)
      more, of_rounds = (np.int32(1),), (self.most, self.count)
      round_keys = round_keys.update(shape=of_rounds)
      if not cohorts.everyone:
        shape = *of_rounds, *cohorts.ids.shape
        cohorts = dataclasses.replace(cohorts, ids=np.zeros(shape, np.int32))
    states, placed = self._shapes, self._shardings
    start_options = {'out_shardings': (placed, None), **self._once}
    donates = {'donate_argnums': 0, 'out_shardings': (placed, None, None)}
    round_args = states, train, cohorts, round_keys, numbers, *more
    measure_args = states, train, test, keys[2], numbers
    return [
      ('the start', start, (keys[0], train, numbers), start_options),
      ('a round', rounds, round_args, donates | self._often),
      ('the evaluation', measure, measure_args, self._rarely),
    ]

  def trace(self) -> None:
    """Traces the programs, which says which numbers are their arguments."""
    for what, function, args, options in self.calls:
      programs.traced(what, self, function, *args, **options)

  @functools.cached_property
  def programs(self) -> list[Program]:
    """The start, the rounds and the evaluation, which are being compiled."""
    return [
      programs.compiled(what, self, function, *args, **options)
      for what, function, args, options in self.calls
    ]

  def wait(self) -> None:
    """Waits for the programs; raises `TooLarge` if one does not fit."""
    for program in self.programs:
      _ = program.compiled

  def _rounds(
    self,
    step: Callable[..., Any],
    states: Any,
    train: Any,
    cohorts: Cohort,
    keys: Any,
    numbers: Any,
    count: jax.Array,
  ) -> Any:
    """Trains some rounds of R > 1 runs; what they report has an axis of rounds."""

    def one(i: Any, states: Any) -> Any:
      ids = cohorts.ids if cohorts.everyone else cohorts.ids[i]
      cohort = dataclasses.replace(cohorts, ids=ids, round=cohorts.round + i)
      return step(states, train, cohort, keys[i], numbers)

    if self.most == 1:
      states, *reports = one(0, states)
      return states, *jax.tree.map(lambda x: x[None], reports)

    def body(i: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
      states, *new = one(i, carry[0])
      write = jax.lax.dynamic_update_index_in_dim
      return states, jax.tree.map(lambda a, x: write(a, x, i, 0), carry[1], new)

    _, *shapes = self.traced.out_info
    axes = self.most, self.count
    reports = jax.tree.map(lambda s: jnp.zeros((*axes, *s.shape), s.dtype), shapes)
    states, reports = jax.lax.fori_loop(0, count, body, (states, reports))
    return states, *reports

  def inputs(
    self,
    seeds: Sequence[int],
    values: Sequence[Mapping[str, Any]],
    data: Sequence[Splits],
  ) -> Any:
    """Keys, numbers, training and test splits of R runs, on the devices."""
    self.trace()
    streams = prng_streams.INIT, prng_streams.ROUNDS, prng_streams.FINETUNE
    keys = [
      [prng_streams.folded(jax.random.key(seed), stream) for stream in streams]
      for seed in seeds
    ]
    numbers = [self.arguments.values(x) for x in values]
    if self.count == 1:
      return sharding.replicate(keys[0], self._mesh), numbers[0], *data[0]

    def stack(*x: Any) -> jax.Array:
      return jnp.stack(list(map(jnp.asarray, x)))

    flat, forms = zip(*map(jax.tree.flatten, data), strict=True)
    columns = zip(zip(*flat, strict=True), self._axes, strict=True)
    arrays = [x[0] if axis is None else stack(*x) for x, axis in columns]
    stacks = [jax.tree.map(stack, *x) for x in (keys, numbers)]
    splits = jax.tree.unflatten(forms[0], arrays)
    return *sharding.replicate(stacks, self._mesh), *splits

  def start(self, inputs: Any) -> Any:
    """The first states of runs, and clusters that their clients deploy from."""
    (key, *_), numbers, train, _ = inputs
    return self.programs[0](key, train, numbers)

  def train(
    self,
    states: Any,
    inputs: Any,
    cohorts: Sequence[Sequence[Cohort]],
    number: int,
  ) -> Any:
    """Trains rounds from `number` on, and takes over the memory of the states.

    `cohorts` are those of each round, of each run; R = 1 trains one round. Returns the
    states, and what the runs report, [most rounds, R, ...] unless R = 1.
    """
    (_, key, _), numbers, train, _ = inputs
    first, count = cohorts[0][0], len(cohorts)
    if self.count == 1:
      key = prng_streams.folded(key, number)
      state, info, clusters = self.programs[1](states, train, first, key, numbers)
      if (between := self.algorithm.between) is not None:
        state, info = between(state, info)
        state = sharding.place(state, self._shardings)
        info = info._replace(updates=None)
        clusters = None if info.clusters else self.clusters(state, inputs)
      return state, info, clusters
    if not first.everyone:
      ids = [[c.ids for c in cohorts[min(i, count - 1)]] for i in range(self.most)]
      first = dataclasses.replace(first, ids=np.array(ids))
    keys = prng_streams.folded(key, number + np.arange(self.most)[:, None])
    return self.programs[1](states, train, first, keys, numbers, np.int32(count))

  def evaluate(self, states: Any, inputs: Any, number: int) -> Any:
    """Values of `measure` after a round, of each run."""
    (*_, key), numbers, *splits = inputs
    return self.programs[2](states, *splits, prng_streams.folded(key, number), numbers)

  def clusters(self, states: Any, inputs: Any) -> Any:
    """Clusters that clients deploy from; None without any."""
    if not self.deployed.has_clusters():
      return None
    _, numbers, train, _ = inputs
    find = self._over(self._clusters, 0, self._split_axes[0], 0)
    args = states, train, numbers
    return programs.compiled('the clusters', self, find, *args)(*args)

  def state(self, states: Any, place: int) -> Any:
    """The state of a run, placed as in a run alone."""
    if self.count == 1:
      return states

    def take(states: Any, place: jax.Array) -> Any:
      index = jax.lax.dynamic_index_in_dim
      return jax.tree.map(lambda x: index(x, place, 0, keepdims=False), states)

    args = states, np.int32(place)
    placed = jax.tree.map(lambda s: s.sharding, self.shape)
    what, options = 'the state of a run', {'out_shardings': placed, **with_passes(0)}
    return programs.compiled(what, self, take, *args, **options)(*args)

  def states(self, each: Sequence[Any]) -> Any:
    """The states of all R runs, from that of each."""
    if self.count == 1:
      return each[0]
    stacks = jax.tree.map(lambda *x: jnp.stack(x), *each)
    return jax.tree.map(jax.device_put, stacks, self._shardings)


def axes_of(pool: Sequence[Splits]) -> tuple[int | None, ...]:
  """The axis of runs of each array of their splits: None of what all have in common."""
  flat = [jax.tree.leaves(splits) for splits in pool]
  columns = zip(*flat, strict=True)
  return tuple(None if all(y is x[0] for y in x) else 0 for x in columns)


def _check_deployed(used: ClientModels, count: int) -> None:
  """Raises `UserError` unless shapes of what is deployed are of `count` clients."""
  choice, mixture, models = used.choice, used.mixture, used.num_models()
  alone = models > 1 and choice is None and mixture is None
  check(not alone, f'deployed: gives {models} models and no choice')
  if choice is not None:
    right = choice.shape == (count,) and jnp.issubdtype(choice.dtype, jnp.integer)
    check(right, f'deployed: choice must be integers of shape {(count,)}')
  if mixture is not None:
    right = mixture.shape == (count, models)
    check(right, f'deployed: mixture must have shape {(count, models)}')
