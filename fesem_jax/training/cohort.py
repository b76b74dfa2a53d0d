"""Local training of a cohort: a function of one client, mapped over the cohort."""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import batching, client_map, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import clipped
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training import client_memory, shared_kernels
from fesem_jax.training.kernel_change import Kernel
from fesem_jax.training.local_sgd import local_sgd
from fesem_jax.training.one_client import Client, LocalModel
from fesem_jax.training.privacy import check_noised, noised
from fesem_jax.training.shared_start import add_to_one, changes_sgd, whole_models
from fesem_jax.training.trained import Reduction, Trained
from fesem_jax.utils.errors import check

_KEEP = Reduction()

# Client -> outcome to report, model to send (or None), new state of the client.
ClientUpdate = Callable[[Client], tuple[LocalModel, Params, Any]]


class Call(NamedTuple):
  """A call of `for_each_client`, with options of `train_cohort`."""

  update_client: ClientUpdate
  local: LocalTraining
  starts: ClientModels
  cohort: Cohort
  key: jax.Array
  state: Any
  inputs: Any
  broadcast: Any
  per_chunk: int  # maximum number of clients that train side by side
  # Dense layers that clients store as changes of a shared start; see `shared_start`.
  kernels: tuple[Kernel, ...] = ()
  epochs: jax.Array | None = None  # [S] int32 in place of the schedule's epochs


# A context variable, so that the `step` of a method need not pass it on.
_CALLS: contextvars.ContextVar[list[Call] | None] = contextvars.ContextVar(
  'calls', default=None
)


@contextlib.contextmanager
def record_calls() -> Iterator[list[Call]]:
  """Records the cohort trainings that JAX traces within the block."""
  calls: list[Call] = []
  token = _CALLS.set(calls)
  try:
    yield calls
  finally:
    _CALLS.reset(token)


def for_each_client(
  update_client: ClientUpdate,
  local: LocalTraining,
  starts: ClientModels,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  reduction: Reduction = _KEEP,
  *,
  state: Any = None,
  inputs: Any = None,
  broadcast: Any = None,
) -> Trained:
  """Maps a function of one client over a cohort, and reduces the models sent.

  A client that drops out or fails keeps its state and has weight 0.

  Args:
    update_client: maps a `Client` to three values: its `LocalModel`, the model that it
      sends (the result of `Client.send`) or None, and its new state.
    local: settings of local training.
    starts: the models from which the S clients of the cohort start.
    data: training split.
    cohort: S clients.
    key: key of this round; clients fold in their ids.
    reduction: reduces the models sent; the default returns all of them.
    state: [S, ...] states of the clients, `Client.state`.
    inputs: [S, ...] further inputs of the clients, `Client.inputs`.
    broadcast: arrays that all clients read, `Client.broadcast`. `update_client` must
      not close over arrays on a mesh.

  Returns:
    `Trained`, split over the mesh; its `state` has the new states.

  Raises:
    UserError: if `starts` is not of S clients, or if `update_client` does not call
      `Client.send` although attacks or `local.sends` change the models sent.
  """
  per_chunk = local.clients_per_chunk
  call = Call(
    update_client, local, starts, cohort, key, state, inputs, broadcast, per_chunk
  )
  return map_all(call, data, reduction)


def map_all(call: Call, data: FederatedData, reduction: Reduction) -> Trained:
  if (calls := _CALLS.get()) is not None:
    calls.append(call)
  noise = call.local.sends and call.local.sends.server
  memory = client_memory.OF_ROUND.get()  # what clients keep from round to round
  if memory is not None:
    call = call._replace(state=(call.state, memory.of(call.cohort)))
  update_client, local, starts, cohort, key, *_, kernels, _ = call
  _check(call, reduction)
  steps = local.num_steps(data, cohort.ids, call.epochs)
  arrived = local.arrived(key, data, cohort.ids)
  steps = jnp.where(arrived, steps, 0)
  num_groups = starts.num_models() if kernels else 1
  sums_only = bool(kernels and reduction.mean_by) and num_groups == 1
  unequal = batching.are_unequal(local.schedule, data)

  # New states, and models if all are personal, overwrite the old ones.
  in_place = reduction.keep and starts.shared is None
  into, start_rows = reduction.into, starts._replace(shared=None)
  if in_place:
    into, start_rows = starts.personal, start_rows._replace(personal=None)
  old_states = Trained._make([None] * len(Trained._fields))._replace(state=call.state)

  def body(common: Any, ids: jax.Array, rows: Any, old: Any, sums: Any) -> Any:
    (models, broadcast, device_data, round_key, rate), _ = common
    (steps, arrived), inputs, starts = rows
    if in_place:
      starts = starts._replace(personal=old[0])
    state, sizes = old[1].state, device_data.sizes(ids)

    def train_client(steps, id, size, key, starts, state, inputs):
      state, kept_memory = (state, {}) if memory is None else state
      client = Client(
        local, device_data, id, size, steps, key, starts._replace(shared=models), rate,
        state, inputs, broadcast, memory=kept_memory,
      )  # fmt: skip
      model, sent, client_state = update_client(client)
      _check_sent(sent, client)
      if memory is not None:
        client_state = memory.collect(state, client_state, kept_memory, client.to_keep)
      finite = functools.reduce(jnp.logical_and, client.sent_finite, model.finite)
      return sent, client_state, (model.loss, finite, model.steps)

    # No steps in empty slots, or for clients whose examples are on other devices.
    steps = jnp.where(sizes > 0, steps, 0)
    keys = device_data.keys_of(round_key, ids)
    args = ids, sizes, keys, starts, state, inputs
    results = client_map.by_work(train_client, steps, args, unequal)
    clients = ids, sizes, arrived, state, starts
    return ((*results, clients), common), sums

  def finish(results: Any, common: Any, sums: Any) -> Any:
    sent, client_state, outcome, (ids, sizes, arrived, state, starts) = results
    loss, finite, steps = outcome
    (models, _, device_data, *_), fold_broadcast = common
    data_weights = device_data.weights_of(ids)
    trained = Trained(
      ids, None, loss, sizes, finite, arrived, steps, data_weights=data_weights
    )
    if state is not None:
      client_state = tree.where(trained.took_part(), client_state, state)
    trained, folded = trained._replace(state=client_state), None
    if sums_only:
      weights = trained.weights(reduction.mean_by)
      sums = add_to_one(sums, sent, weights, models, local.precision)
    else:
      if kernels:
        sent = whole_models(sent, models, starts.choice, local.precision)
      trained = trained._replace(params=sent)
    if reduction.fold is not None and not sums_only:
      starts = starts._replace(shared=models)
      args = () if fold_broadcast is None else (fold_broadcast,)
      with clipped(variable(noise.clip)) if noise else contextlib.nullcontext():
        folded, sums = reduction.fold(trained, starts, sums, *args)
    # Filled in at the end: XLA on a CPU cannot compile a loop that copies
    # `arrived` of single clients (jaxlib 0.10.2, unequal sizes, full batches).
    cohort_fields: dict[str, Any] = {'ids': None, 'arrived': None}
    trained = trained._replace(params=None, folded=folded, **cohort_fields)
    return (sent if reduction.keep else None, trained), sums

  round_args = starts.shared, call.broadcast, data, key, local.rate(cohort)
  (params, trained), sums = client_map.map_clients(
    body,
    cohort.ids,
    steps,
    ((steps, arrived), call.inputs, start_rows),
    (round_args, reduction.broadcast),
    per_chunk=call.per_chunk,
    empty=data.num_clients,
    mesh=local.mesh,
    sums=reduction.sums,
    into=(into, old_states),
    replaces=in_place or call.state is not None,
    group=starts.choice if kernels else None,  # At most two centers a chunk.
    num_groups=num_groups,
    finish=finish,
    # `finish` forms few complete models at once, for the cache.
    part=call.per_chunk if sums_only else local.clients_per_chunk,
  )
  sums = noised(noise, key, sums, local.unsent) if noise else sums
  if memory is not None:
    trained = trained._replace(state=memory.store(cohort, trained.state))
  return trained._replace(ids=cohort.ids, params=params, arrived=arrived, sums=sums)


def _check(call: Call, reduction: Reduction) -> None:
  count = call.cohort.ids.shape[0]
  for x in jax.tree.leaves(call.starts[1:]):
    fits = x.shape[:1] == (count,)
    check(fits, f'starts: shape {x.shape}, but {count} clients; use starts.of(cohort)')
  are_sent = call.starts.shared is not None or reduction.sent == 'personal'
  if call.local.sends is not None and are_sent and not reduction.noised:
    keeps_models = reduction.keep and reduction.sent != 'nothing'
    check_noised(call.local, reduction.sums, keeps_models)
  parts = call.inputs, call.state, reduction.into, call.epochs
  chex.assert_tree_shape_prefix(parts, (count,))


def _check_sent(sent: Params, client: Client) -> None:
  """Raises `UserError` if a model to change bypasses `Client.send`."""
  attack, sends = client.data.attack, client.local.sends
  changes_models = sends is not None or (attack is not None and attack.poisons_models)
  bypasses = changes_models and sent is not None and not client.sent
  check(not bypasses, 'for_each_client: send models by client.send(...)')


def train_cohort(
  local: LocalTraining,
  starts: ClientModels,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  reduction: Reduction = _KEEP,
  *,
  penalty: jax.Array | float | None = None,
  layers: Sequence[str] | None = None,
  factors: jax.Array | None = None,
  epochs: jax.Array | None = None,
) -> Trained:
  """Trains every client of the cohort from its start by `local_sgd`.

  Args:
    local: settings of local training.
    starts: the models from which the S clients of the cohort start.
    data: training split.
    cohort: S clients.
    key: key of this round.
    reduction: reduces the models sent; the default returns all of them.
    penalty: [] or [S] float32 factor of the squared distance to the start (lambda in
      Eq. 7 of Long et al., mu / 2 in FedProx); None adds no penalty.
    layers: names of the layers that learn; None is all layers.
    factors: [S, N_max] float32 factors of the losses of the examples. A batch still
      divides the sum of its losses by its number of examples.
    epochs: [S] int32 epochs of clients; if traced, at most those of `local`.

  Raises:
    UserError: as `for_each_client`, and of several models without choice or mixture.
  """
  shape = cohort.ids.shape
  has_either = starts.choice is not None or starts.mixture is not None
  is_clear = has_either or starts.num_models() <= 1
  check(is_clear, 'starts: several models need choice, the model of each client')
  if penalty is not None:
    penalty = jnp.broadcast_to(jnp.asarray(penalty, jnp.float32), shape)
  chex.assert_tree_shape_prefix(factors, (*shape, data.max_examples))
  if epochs is not None:
    local = _with_epochs(local, epochs)
  poisons = data.attack is not None and data.attack.poisons_models
  if (poisons or local.sends is not None) and reduction.sent != 'nothing':
    local = local._replace(shared_start='off')  # These need complete models.
  kernels, per_chunk = shared_kernels.choose(local, starts, data, shape[0], layers)

  def update_client(client):
    penalty, factors, epochs = client.inputs
    train = functools.partial(changes_sgd, kernels) if kernels else local_sgd
    model = train(client, penalty=penalty, layers=layers, factors=factors)
    if epochs is not None:
      fits = epochs <= local.schedule.epochs
      # A client fails if it has more epochs than the compiled schedule.
      loss = jnp.where(fits, model.loss, jnp.nan)
      model = dataclasses.replace(model, loss=loss, finite=model.finite & fits)
    return model, reduction.sent_by(client, model, layers), None

  inputs, bounded_epochs = (penalty, factors, epochs), epochs
  if epochs is not None:
    bounded_epochs = jnp.minimum(epochs, local.schedule.epochs)
  call = Call(update_client, local, starts, cohort, key, None, inputs, None, per_chunk)
  return map_all(call._replace(kernels=kernels, epochs=bounded_epochs), data, reduction)


def _with_epochs(local: LocalTraining, epochs: jax.Array) -> LocalTraining:
  """Settings with the maximum of `epochs` [S], unless these are traced."""
  is_concrete = not isinstance(epochs, jax.core.Tracer)
  if not is_concrete or not getattr(epochs, 'is_fully_addressable', True):
    return local
  values = np.asarray(epochs)
  check((values >= 0).all(), f'epochs: must be at least 0; got {values.min()}')
  max_epochs = max(1, int(values.max(initial=0)))
  return local._replace(schedule=local.schedule._replace(epochs=max_epochs))
