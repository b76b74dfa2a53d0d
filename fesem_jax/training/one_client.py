"""A client in a round, and its steps on the batches of its examples."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict

from fesem_jax.core import batching, parameter_names, prng_streams, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Model, Params
from fesem_jax.models import dense_layers
from fesem_jax.training import client_memory, sent_models
from fesem_jax.training.batch_losses import Batch, augmented, descend, in_training
from fesem_jax.utils.errors import check


@dataclasses.dataclass(frozen=True, eq=False)
class Client:
  """A client in a round, as the function that is mapped over the cohort sees it.

  Functions close over a client and never return it: its arrays exist within the map.

  Attributes:
    local: settings of local training.
    data: training split.
    id: [] int32 position in the data; M in an empty slot.
    size: [] int32 training examples.
    steps: [] int32 local steps; 0 if it drops out.
    key: key of this client in this round.
    models: `shared` [R, ...] of all clients; its `choice` [] and `personal`.
    rate: [] float32, see `LocalTraining.rate`; None is 1.
    state: its state between rounds.
    inputs: its further inputs in this round.
    broadcast: arrays that all clients receive in addition to models.
  """

  local: LocalTraining
  data: FederatedData
  id: jax.Array
  size: jax.Array
  steps: jax.Array
  key: jax.Array
  models: ClientModels
  rate: jax.Array | None = None
  state: Any = None
  inputs: Any = None
  broadcast: Any = None
  # Numbers of its trainings in this round, which fold their keys.
  trainings: Iterator[int] = dataclasses.field(default_factory=itertools.count)
  sent: 'list[LocalModel]' = dataclasses.field(default_factory=list)  # by `send`
  # What it has kept, and what is to be kept; see `client_memory`.
  memory: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  to_keep: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
  # [] bool of each model that `LocalTraining.sends` changed: whether it is finite.
  sent_finite: list[jax.Array] = dataclasses.field(default_factory=list)

  @functools.cached_property
  def received(self) -> Params:
    """The model that the server sent, None in place of the client's own layers."""
    return parameter_names.replaced(self._server_model, self.memory.get('statistics'))

  @functools.cached_property
  def _server_model(self) -> Params:
    shared, choice = self.models.shared, self.models.choice
    if choice is None or shared is None:
      return None if shared is None else tree.unstack(shared, 0)
    return tree.unstack(tree.rows_of_few(shared, choice[None], self.local.mesh), 0)

  @functools.cached_property
  def start(self) -> Params:
    """The complete model: what the server sent, with the client's own layers."""
    personal, received = self.models.personal, self.received
    if personal is None or received is None:
      return received if personal is None else personal
    return tree.merge(received, personal)

  def with_epochs(self, most: int, epochs: jax.Array | None = None) -> 'Client':
    """The client with other local epochs: `most`, or `epochs` [] int32 up to these."""
    epochs = None if epochs is None else jnp.minimum(epochs, most)
    schedule = self.local.schedule._replace(epochs=most, steps=0)
    steps = batching.num_steps(schedule, self.size, self.data.max_examples, epochs)
    steps = jnp.where(self.steps > 0, steps, 0)
    local = self.local._replace(schedule=schedule)
    return dataclasses.replace(self, local=local, steps=steps)

  def optimizer_state(
    self, params: Params, optimizer: optax.GradientTransformation | None = None
  ) -> optax.OptState:
    """The first state of the local optimizer, or another, with keys of the training."""
    optimizer = self.local.optimizer if optimizer is None else optimizer
    key, number = self.key, next(self.trainings)
    key = jax.random.fold_in(key, number) if number else key
    return prng_streams.with_keys(optimizer.init(params), key)

  def leave(self, name: str, value: Any) -> None:
    """Notes what the client keeps, if it keeps what is so named."""
    if name in self.memory:
      self.to_keep.setdefault(name, []).append(value)

  def resumed(self, first: optax.OptState) -> optax.OptState:
    """The state of the local optimizer that the client kept, or its `first`."""
    previous, has_state = self.memory['optimizer']
    return where(has_state, previous, first)

  def descend(
    self,
    t: jax.Array,
    grads: Params,
    state: optax.OptState,
    params: Params,
    optimizer: optax.GradientTransformation | None = None,
  ) -> tuple[Params, optax.OptState]:
    """A step of the local optimizer, or another, at the rate of the step `t` []."""
    optimizer = self.local.optimizer if optimizer is None else optimizer
    rate = self.local.rate_of_step(t, self.rate)
    statistics = self.local.model.statistics
    return descend(optimizer, grads, state, params, rate, statistics)

  def with_model(self, model: Model) -> 'Client':
    """The client with another model, of the same parameters."""
    local = self.local._replace(model=model)
    return dataclasses.replace(self, local=local)

  def send(
    self, model: 'LocalModel', received: Params, layers: Sequence[str] | None = None
  ) -> Params:
    """The model that the server gets, in the layers of `received` and those that learn.

    Attacks and `LocalTraining.sends` change it. A client that drops out or fails sends
    its start; one whose changed model is not finite fails.
    """
    self.sent.append(model)
    unsent = self.memory.get('statistics', self.local.unsent)
    if unsent and received is not None:  # They stay with the client.
      trained = flatten_dict(model.params, sep='/')
      self.leave('statistics', {path: trained[path] for path in unsent})
      params = flatten_dict(self._server_model, sep='/')
      params = {path: params[path] for path in unsent if params.get(path) is not None}
      model = model.of(parameter_names.replaced(model.params, params))
      received = parameter_names.replaced(received, dict.fromkeys(params))
    sends = self.local.sends
    if received is None or not sent_models.are_changed(self.data, sends):
      return model.compact
    if 'residual' in self.memory and sends is not None:
      residuals = self.to_keep.setdefault('residual', [])
      sends = client_memory.with_residual(sends, self.memory['residual'], residuals)
    sent = sent_models.as_sent(
      self.data, self.id, self.key, received, model.params, layers, sends
    )
    if sends is None:
      return sent
    self.sent_finite.append(all_finite(sent) | (self.steps == 0))
    counts = model.finite & self.sent_finite[-1] & (self.steps > 0)
    unsent = where(self.sent_finite[-1], model.params, self.start)
    return where(counts, sent, unsent)


@dataclasses.dataclass(frozen=True, eq=False)
class LocalModel:
  """The outcome of a client's local training."""

  compact: Params  # the model; kernels of a shared start as `shared_start.Moves`
  loss: jax.Array  # [] float32 mean loss of the examples as they were visited
  finite: jax.Array  # [] bool, False where the training failed: `params` is its start
  steps: jax.Array  # [] int32 local steps taken
  # forms the kernels of `compact`
  whole: Callable[[Params], Params] = lambda compact: compact

  @functools.cached_property
  def params(self) -> Params:
    return self.whole(self.compact)

  def of(self, params: Params) -> 'LocalModel':
    """The same of `params`, one of several models that trained together."""
    return LocalModel(params, self.loss, self.finite, self.steps)

  def after(self, first: 'LocalModel') -> 'LocalModel':
    """The same of a client that trained `first` before in this round."""
    finite, steps = self.finite & first.finite, self.steps + first.steps
    return dataclasses.replace(self, finite=finite, steps=steps)


# (step [] int32, params, memory, params -> loss [] and gradient of the step's batch)
# -> params, memory, loss [] to report.
Step = Callable[..., tuple[Any, Any, jax.Array]]


def for_each_batch(
  client: Client,
  params: Params,
  memory: Any,
  step: Step,
  factors: jax.Array | None = None,
) -> LocalModel:
  """Takes a client's local steps: `step` for each batch of its examples.

  Clients side by side count their steps together, from 0 in each round, so that
  `jax.lax.cond` on the number takes one branch.

  Args:
    client: the client.
    params: the trained parameters, one model or a tree of models and numbers.
    memory: values to carry from step to step, such as moments.
    step: see `Step`.
    factors: [N_max] float32 factors of the losses of its examples; None is 1.

  Returns:
    `LocalModel`, whose training failed if `params` or the loss are not finite.

  Raises:
    UserError: if the model has BatchNorm.
  """
  plain = not client.local.model.statistics
  check(plain, 'model: this method does not train BatchNorm; use GroupNorm')

  def one_step(t, carry, batch):
    def gradient_of(params):
      with jax.default_matmul_precision(client.local.precision):
        return jax.value_and_grad(batch.loss)(params)

    *new, loss = step(t, *carry, gradient_of)
    return where(batch.active, tuple(new), carry), loss

  (last, _), loss = over_batches(client, (params, memory), one_step, factors)
  finite = all_finite(last) & jnp.isfinite(loss)
  return LocalModel(where(finite, last, params), loss, finite, client.steps)


def over_batches(
  client: Client,
  carry: Any,
  step: Callable[[jax.Array, Any, Batch], tuple[Any, jax.Array]],
  factors: jax.Array | None = None,
  over_steps: Callable[..., Any] = jax.lax.fori_loop,
) -> tuple[Any, jax.Array]:
  """The carry after a client's local steps, and the mean loss [] of its examples.

  A step of which `Batch.active` is False must leave the carry as it is.
  """
  local, key = client.local, client.key
  shape = (client.data.max_examples,)
  fits = factors is None or jnp.shape(factors) == shape
  check(fits, f'factors: must have shape {shape}, as the examples of a client')
  batch_at = batching.batches_of_client(
    local.schedule, client.data, client.id, client.size, key, factors
  )

  def body(t: jax.Array, loop: Any) -> Any:
    carry, total, num_seen = loop
    x, y, weights, example_factors = batch_at(t)
    model, active = in_training(local.model, key, t, weights), t < client.steps
    if local.augmentation is not None:
      x = augmented(local.augmentation, key, t, x)
    carry, loss = step(t, carry, Batch(model, x, y, weights, example_factors, active))
    count = jnp.where(active, weights.sum(), 0.0)
    total += jnp.where(active, loss * weights.sum(), 0.0)
    return carry, total, num_seen + count

  loop = carry, jnp.float32(0.0), jnp.float32(0.0)
  most = jax.lax.pmax(client.steps, batching.SIDE)
  carry, total, num_seen = over_steps(0, most, body, loop)
  return carry, total / jnp.maximum(num_seen, 1.0)


def where(condition: jax.Array, a: Any, b: Any) -> Any:
  return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def all_finite(params: Params) -> jax.Array:
  return tree.all_finite(tree.expand(params))[0]


def together(grads: Any) -> Any:
  """The same gradients, none ready before all large ones: updates are then in place."""
  leaves, form = jax.tree.flatten(grads)
  large = [g.size > dense_layers.SMALL for g in leaves]
  if not any(large):
    return grads
  # An element by its index: `ravel` would copy the whole gradient on a TPU.
  zeros = (0 * g[(0,) * g.ndim] for g, wait in zip(leaves, large, strict=True) if wait)
  # One that is not finite must not spoil the other layers: optimizers may mend it.
  tie = sum(jnp.where(jnp.isnan(zero), 0.0, zero) for zero in zeros)
  leaves = [g + tie if wait else g for g, wait in zip(leaves, large, strict=True)]
  return jax.tree.unflatten(form, leaves)
