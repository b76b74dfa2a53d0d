"""Local training of a cohort: a function of one client, mapped over its clients."""

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
from fesem_jax.training.privacy import check_reduced, noised
from fesem_jax.training.shared_start import add_to_one, changes_sgd, whole_models
from fesem_jax.training.trained import Reduction, Trained
from fesem_jax.utils.errors import check

_KEEP = Reduction()

# `Client` -> its `LocalModel`, the model that it sends or None, and what it keeps.
ClientUpdate = Callable[[Client], tuple[LocalModel, Params, Any]]


class Call(NamedTuple):
  """A function of one client and all that it is mapped over; see `for_each_client`."""

  update_client: ClientUpdate
  local: LocalTraining
  starts: ClientModels
  cohort: Cohort
  key: jax.Array
  state: Any
  inputs: Any
  broadcast: Any
  per_chunk: int  # the most clients side by side
  # Kernels of which a client keeps changes to a shared start; see `shared_start`.
  kernels: tuple[Kernel, ...] = ()
  epochs: jax.Array | None = None  # [S] int32 in place of the schedule's


# A context variable, so that a method's `step` need not pass it on.
_CALLS: contextvars.ContextVar[list[Call] | None] = contextvars.ContextVar(
  'calls', default=None
)


@contextlib.contextmanager
def calls_noted() -> Iterator[list[Call]]:
  """Notes the calls of `for_each_client` that are traced within the block."""
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
  """Maps a function of one client over a cohort, and reduces what clients send.

  A client that drops out or fails keeps its state and does not count.

  Args:
    update_client: (`Client`) -> its `LocalModel`, the model that it sends
      (`Client.send`) or None, and what it keeps; arrays on a mesh come as `broadcast`.
    local: how clients train.
    starts: the models that the server sends, and the S clients' own.
    data: training split.
    cohort: S clients.
    key: key of this round; each client folds its id into it.
    reduction: of what clients send; all is kept by default.
    state: [S, ...] `Client.state`, of the structure that `update_client` keeps.
    inputs: [S, ...] `Client.inputs`.
    broadcast: `Client.broadcast`, the same arrays for all clients.

  Returns:
    `Trained`, split over the mesh; its `state` is what clients keep.

  Raises:
    UserError: if `starts` are of other clients than the cohort's, or if `update_client`
      bypasses `Client.send` although attacks or `local.sends` change what is sent.
  """
  per_chunk = local.clients_per_chunk
  call = Call(
    update_client, local, starts, cohort, key, state, inputs, broadcast, per_chunk
  )
  return run(call, data, reduction)


def run(call: Call, data: FederatedData, reduction: Reduction) -> Trained:
  if (calls := _CALLS.get()) is not None:
    calls.append(call)
  noise = call.local.sends and call.local.sends.server
  memory = client_memory.OF_ROUND.get()
  if memory is not None:
    call = call._replace(state=(call.state, memory.of(call.cohort)))
  update_client, local, starts, cohort, key, *_, kernels, _ = call
  _check(call, reduction)
  steps = local.num_steps(data, cohort.ids, call.epochs)
  arrived = local.arrived(key, data, cohort.ids)
  steps = jnp.where(arrived, steps, 0)
  num_starts = starts.num_models() if kernels else 1
  sums_only = bool(kernels and reduction.mean_by) and num_starts == 1
  unequal = batching.are_unequal(local.schedule, data)

  # The clients' own models are read, then replaced.
  in_place = reduction.keep and starts.shared is None
  into, rows = reduction.into, starts._replace(shared=None)
  if in_place:
    into, rows = starts.personal, rows._replace(personal=None)
  replaced = Trained._make([None] * len(Trained._fields))._replace(state=call.state)

  def body(shared: Any, ids: jax.Array, rows: Any, old: Any, sums: Any) -> Any:
    (models, broadcast, data, key, rate), _ = shared
    (steps, arrived), inputs, starts = rows
    if in_place:
      starts = starts._replace(personal=old[0])
    state = old[1].state
    sizes = data.sizes(ids)

    def train_client(steps, id, size, key, starts, state, inputs):
      state, kept_memory = (state, {}) if memory is None else state
      client = Client(
        local, data, id, size, steps, key, starts._replace(shared=models), rate,
        state, inputs, broadcast, memory=kept_memory,
      )  # fmt: skip
      model, sent, client_state = _checked(update_client(client), client)
      if memory is not None:
        client_state = memory.collect(state, client_state, kept_memory, client.to_keep)
      finite = functools.reduce(jnp.logical_and, client.sent_finite, model.finite)
      return sent, client_state, (model.loss, finite, model.steps)

    # No steps in empty places, and where a device lacks a client's rows.
    steps = jnp.where(sizes > 0, steps, 0)
    keys = data.keys_of(key, ids)
    args = ids, sizes, keys, starts, state, inputs
    results = client_map.by_work(train_client, steps, args, unequal)
    rest = ids, sizes, arrived, state, starts
    return ((*results, rest), shared), sums

  def finish(results: Any, shared: Any, sums: Any) -> Any:
    sent, client_state, reported, (ids, sizes, arrived, state, starts) = results
    loss, finite, steps = reported
    (models, _, data, *_), broadcast = shared
    weights = data.weights_of(ids)
    trained = Trained(
      ids, None, loss, sizes, finite, arrived, steps, data_weights=weights
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
      more = () if broadcast is None else (broadcast,)
      with clipped(variable(noise.clip)) if noise else contextlib.nullcontext():
        folded, sums = reduction.fold(trained, starts, sums, *more)
    # Fields of the cohort are left out. XLA cannot compile a loop for a CPU that copies
    # `arrived` of single clients (jaxlib 0.10.2, unequal sizes, full batches).
    cohort_fields: dict[str, Any] = {'ids': None, 'arrived': None}
    trained = trained._replace(params=None, folded=folded, **cohort_fields)
    return (sent if reduction.keep else None, trained), sums

  (params, trained), sums = client_map.map_clients(
    body,
    cohort.ids,
    steps,
    ((steps, arrived), call.inputs, rows),
    (
      (starts.shared, call.broadcast, data, key, local.rate(cohort)),
      reduction.broadcast,
    ),
    per_chunk=call.per_chunk,
    empty=data.num_clients,
    mesh=local.mesh,
    sums=reduction.sums,
    into=(into, replaced),
    replaces=in_place or call.state is not None,
    group=starts.choice if kernels else None,  # Clients of a center are neighbors.
    num_groups=num_starts,
    finish=finish,
    # Few whole models at a time, so that they stay in the cache.
    part=call.per_chunk if sums_only else local.clients_per_chunk,
  )
  sums = noised(noise, key, sums, local.unsent) if noise else sums
  if memory is not None:
    trained = trained._replace(state=memory.store(cohort, trained.state))
  return trained._replace(ids=cohort.ids, params=params, arrived=arrived, sums=sums)


def _check(call: Call, reduction: Reduction) -> None:
  count = call.cohort.ids.shape[0]
  for x in jax.tree.leaves(call.starts[1:]):
    rows = x.shape[:1] == (count,)
    check(rows, f'starts: shape {x.shape}, but {count} clients; use starts.of(cohort)')
  sends = call.starts.shared is not None or reduction.sent == 'personal'
  if call.local.sends is not None and sends and not reduction.noised:
    keeps_models = reduction.keep and reduction.sent != 'nothing'
    check_reduced(call.local, reduction.sums, keeps_models)
  parts = call.inputs, call.state, reduction.into, call.epochs
  chex.assert_tree_shape_prefix(parts, (count,))


def _checked(values: Any, client: Client) -> tuple[LocalModel, Params, Any]:
  """Values of a function of one client; `UserError` if it bypasses `send`."""
  model, sent, client_state = values
  attack, sends = client.data.attack, client.local.sends
  lies = attack is not None and attack.poisons_models
  bypasses = sent is not None and not client.sent
  changes = lies or sends is not None
  check(not (bypasses and changes), 'for_each_client: send models by client.send(...)')
  return model, sent, client_state


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
    local: how clients train.
    starts: the models to start from; results may reuse the memory of `personal`.
    data: training split.
    cohort: S clients.
    key: of this round.
    reduction: of the local models.
    penalty: [] or [S] float32 factor of the squared distance to the start (Eq. 7 of
      Long et al.: lambda; FedProx: mu / 2); None leaves the term out.
    layers: names of the layers that learn; None is all of them.
    factors: [S, N_max] float32 of the examples' losses; their mean is still over the
      number of examples.
    epochs: [S] int32 local epochs in place of the schedule's, for stragglers.

  Raises:
    UserError: see `for_each_client`; also on several models without `choice`.
  """
  shape = cohort.ids.shape
  is_common = starts.choice is None and starts.mixture is None
  several = is_common and starts.num_models() > 1
  check(not several, 'starts: several models need choice, the number of each client')
  if penalty is not None:
    penalty = jnp.broadcast_to(jnp.asarray(penalty, jnp.float32), shape)
  chex.assert_tree_shape_prefix(factors, (*shape, data.max_examples))
  if epochs is not None:
    local = _with_room(local, epochs)
  lies = data.attack is not None and data.attack.poisons_models
  if (lies or local.sends is not None) and reduction.sent != 'nothing':
    local = local._replace(shared_start='off')  # They change whole models.
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
  return run(call._replace(kernels=kernels, epochs=bounded_epochs), data, reduction)


def _with_room(local: LocalTraining, epochs: jax.Array) -> LocalTraining:
  """Settings whose schedule has all `epochs` [S], where these are known."""
  is_concrete = not isinstance(epochs, jax.core.Tracer)
  if not is_concrete or not getattr(epochs, 'is_fully_addressable', True):
    return local
  values = np.asarray(epochs)
  check((values >= 0).all(), f'epochs: must be at least 0; got {values.min()}')
  most = max(1, int(values.max(initial=0)))
  return local._replace(schedule=local.schedule._replace(epochs=most))
