"""Settings of local training, which methods receive."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from fesem_jax.core import batching, prng_streams, sampling, sharding
from fesem_jax.core.batching import Schedule
from fesem_jax.core.client_work import ClientWork
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.sending import OfClient, Sends
from fesem_jax.core.types import Cohort, Model
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.ranges import Count, Index, Share, check_arguments, checked

# Round [] int32, counted from 0 -> factor [] of the round's local updates.
RoundSchedule = Callable[[Any], Any]
# (key, x [B, ...]) -> augmented x [B, ...] for a local step.
Augment = Callable[[jax.Array, jax.Array], jax.Array]
# Local step [] int32, counted from 0 in each round -> factor [] of its update.
StepSchedule = Callable[[Any], Any]

SharedStart = Literal['auto', 'on', 'off']
Precision = Literal['highest', 'high', 'default']  # Of float32 products.
DataPlacement = Literal['auto', 'replicated', 'sharded']
BatchStats = Literal['average', 'local']  # The running statistics of clients' batches.


class Machine(NamedTuple):
  """How clients are placed on devices and computed there.

  Results change with `precision`, with `data_placement` where it splits the data and a
  round draws some of the clients, and otherwise by rounding only; see `LocalTraining`.

  Attributes:
    mesh: devices, as of `client_mesh`; None takes all.
    clients_per_chunk: clients trained side by side on one device; 0 chooses the number
      by the model and the device.
    shared_start: see `LocalTraining`.
    precision: see `LocalTraining`.
    data_placement: see `LocalTraining`.
  """

  mesh: Mesh | None = None
  clients_per_chunk: Index = 0
  shared_start: SharedStart = 'auto'
  precision: Precision = 'highest'
  data_placement: DataPlacement = 'auto'


class LocalTraining(NamedTuple):
  """Settings of local training, and the placement of clients on devices.

  Attributes:
    model: see `Model`.
    optimizer: an Optax optimizer; its state is reset in every round, see
      `keep_optimizer_state`. Random keys in its
      state, as of `optax.add_noise`, are made those of the client in the round.
    schedule: batch size and local epochs or steps.
    clients_per_chunk: C, clients trained side by side on one device; it affects the
      speed, and changes results by rounding only.
    mesh: devices that the cohort is split over; they change results by rounding only.
    dropout_rate: probability that a client of a round drops out, so that its
      update never arrives.
    lr_schedule: round, counted from 0 -> factor of the updates of the local optimizer,
      w <- w + lr_schedule(round) * update; None is 1. Since the optimizer state is
      reset in every round, this is a schedule of the learning rate for every optimizer
      whose updates are proportional to it (SGD, also with momentum, and Adam); e.g.
      `optax.cosine_decay_schedule(1.0, rounds)`. Training outside of rounds (before the
      first, fine-tuning, for figures) uses the full rate.
    shared_start: whether clients that start from the same weights store dense kernels
      as changes from these: 'auto', 'on' or 'off'; see `shared_start`. It changes
      results by rounding only.
    clients_per_shared_start: C with a shared start; 0 chooses it by the kernels and the
      device.
    precision: of the products of local training, forward and backward, on accelerators:
      'highest' as float32 (six passes on a TPU, no rounding on a GPU), 'high' (three
      passes, about 16 bits of each factor; TensorFloat-32 on a GPU) or 'default' (one
      pass, 8 bits; TensorFloat-32). It also applies to fine-tuning. Everything else is
      float32: sums, distances and means of models, losses by which clients choose a
      model, and evaluation. A CPU always uses float32.
    local_lr_schedule: local step, counted from 0 at the start of each training ->
      factor of its update, in addition to `lr_schedule`; None is 1. It also applies to
      fine-tuning and to training before the first round.
    augmentation: (key, x [B, ...]) -> augmented examples of a local step, e.g.
      `augmentation.Augmentation`; the key is folded from the client, the round and the
      step. None for no augmentation. It does not apply to evaluation, nor to losses by
      which clients choose a model.
    sends: what clients send in place of the models that they trained, see `sending`;
      None sends these. Fine-tuning and models that stay with clients are not changed.
    data_placement: where examples are: 'replicated' on every device, 'sharded' by
      client, or 'auto', which splits data that are large.
    batch_stats: of a model with statistics (BatchNorm), 'average' averages them with
      the rest; with 'local' each client keeps its own, which it never sends.
    keep_optimizer_state: whether clients keep the state of the local optimizer from
      round to round, e.g. momentum; else it is reset. Fine-tuning always resets it.
    work: rates, epochs or steps of each client, up to those of the schedule; None if
      all are alike.
  """

  model: Model
  optimizer: optax.GradientTransformation
  schedule: Schedule
  clients_per_chunk: Count
  mesh: Mesh
  dropout_rate: Share = 0.0
  lr_schedule: RoundSchedule | None = None
  shared_start: SharedStart = 'auto'
  clients_per_shared_start: Index = 0
  precision: Precision = 'highest'
  local_lr_schedule: StepSchedule | None = None
  augmentation: Augment | None = None
  sends: Sends | None = None
  data_placement: DataPlacement = 'auto'
  batch_stats: BatchStats = 'average'
  keep_optimizer_state: bool = False
  work: ClientWork | None = None

  @property
  def unsent(self) -> tuple[str, ...]:
    """Paths of the statistics that each client keeps and never sends."""
    return self.model.statistics if self.batch_stats == 'local' else ()

  def check_no_statistics(self, method: str) -> None:
    """Raises `UserError` if the model has running statistics, e.g. of BatchNorm.

    They are averaged, while the `method` moves or compares whole models otherwise.
    """
    plain = not self.model.statistics
    check(plain, f'{method}: not defined for BatchNorm; choose a model with GroupNorm')

  def check_no_sends(self, method: str, sent: str) -> None:
    """Raises `UserError` if clients are to send other models than they trained.

    `sent` says in words what the clients of the `method` send.
    """
    if self.sends is not None:
      raise UserError(f'{self.sends.named}: {method} cannot; its clients send {sent}')

  def arrived(self, key: jax.Array, data: FederatedData, ids: jax.Array) -> jax.Array:
    """[S] bool, False for clients `ids` that drop out of the round of this key."""
    return ~sampling.coin(key, data, ids, self.dropout_rate, prng_streams.DROPOUT)

  def rate(self, cohort: Cohort) -> jax.Array | None:
    """The factor [] float32 of a cohort's local updates; None if it is 1."""
    if self.lr_schedule is None or cohort.round is None:
      return None
    return jnp.asarray(self.lr_schedule(cohort.round), jnp.float32)

  def rate_of_client(
    self, data: FederatedData, client: jax.Array, rate: jax.Array | None
  ) -> jax.Array | None:
    """The factor [] float32 of one client's local updates; None if it is 1.

    `client` [] int32 is its position in the data, and `rate` is that of the cohort.
    """
    if self.work is None:
      return rate
    own = jnp.asarray(data.client_ids).at[client].get(mode='clip')
    return self.work.rate_of(own, rate)

  def num_steps(
    self, data: FederatedData, clients: jax.Array, epochs: jax.Array | None = None
  ) -> jax.Array:
    """[S] int32 local steps of the clients at positions [S] in the data.

    `epochs` [S] int32 take the place of the schedule's; a client with fewer of its own
    does those.
    """
    schedule, sizes = self.schedule, data.sizes(clients)
    if self.work is not None:
      ids = jnp.asarray(data.client_ids).at[clients].get(mode='clip')
      own, steps = self.work.schedule_of(schedule, ids)
      epochs = jnp.minimum(own, schedule.epochs if epochs is None else epochs)
      if schedule.steps:
        return jnp.where(sizes > 0, steps, 0).astype(jnp.int32)
    return batching.num_steps(schedule, sizes, data.max_examples, epochs)

  def rate_of_step(self, step: jax.Array, rate: jax.Array | None) -> jax.Array | None:
    """The factor [] float32 of one local step's update; None if it is 1.

    Args:
      step: [] int32, counted from 0.
      rate: [] float32 from `rate`, or None.
    """
    if self.local_lr_schedule is None:
      return rate
    of_step = jnp.asarray(self.local_lr_schedule(step), jnp.float32)
    return of_step if rate is None else rate * of_step

  def sum_over_steps(self, steps: jax.Array, most: int) -> jax.Array:
    """[] sum of `local_lr_schedule` over the first `steps` steps.

    Args:
      steps: [] int32, at most `most`.
      most: see `batching.most_steps`.
    """
    if self.local_lr_schedule is None:
      return steps
    every = jnp.arange(most, dtype=jnp.int32)
    rates: Any = jax.vmap(lambda step: self.rate_of_step(step, None))(every)
    return jnp.where(every < steps, rates, 0.0).sum()


@checked
def local_training(
  model: Model,
  optimizer: optax.GradientTransformation,
  *,
  batch_size: Index = 10,
  epochs: Count = 1,
  lr_schedule: RoundSchedule | None = None,
  sends: Sends | OfClient | None = None,
  machine: Machine = Machine(),
) -> LocalTraining:
  """Builds a `LocalTraining`, with defaults chosen for the machine.

  `local._replace(...)` sets its other fields: `schedule=fj.Schedule(10, steps=5)` for
  steps in place of epochs, `dropout_rate`, `local_lr_schedule`, `augmentation`,
  `batch_stats`, `keep_optimizer_state` and `work`. `simulate` checks them.

  Args:
    model: see `Model`.
    optimizer: an Optax optimizer whose update needs gradients, state and parameters
      alone, e.g. `optax.sgd(0.1)`.
    batch_size: see `Schedule`.
    epochs: see `Schedule`.
    lr_schedule: see `LocalTraining`.
    sends: see `LocalTraining`; a function (key, start, trained) -> sent is enough.
    machine: devices, clients side by side, precision and placement of the data.

  Raises:
    UserError: if a number or mode is out of range, the model is no `Model`, the
      optimizer is not one of Optax, or `lr_schedule` is not positive in the first
      round.
  """
  check(isinstance(model, Model), 'model: must be a Model, as of models.from_flax')
  is_optimizer = hasattr(optimizer, 'update')
  check(is_optimizer, f'optimizer: must be one of Optax; got {optimizer!r:.40}')
  starts = lr_schedule is None or lr_schedule(0) > 0
  check(starts, 'lr_schedule: must be positive in the first round')
  check_arguments(Machine, machine._asdict())
  mesh, chunk, shared_start, precision, data_placement = machine
  mesh = sharding.client_mesh() if mesh is None else mesh
  params = jax.eval_shape(model.init, jax.random.key(0))
  return LocalTraining(
    model,
    optimizer,
    Schedule(batch_size, epochs),
    chunk or sharding.default_clients_per_chunk(params, mesh),
    mesh,
    lr_schedule=lr_schedule,
    shared_start=shared_start,
    clients_per_shared_start=chunk,
    precision=precision,
    sends=sends if isinstance(sends, Sends | None) else Sends(sends),
    data_placement=data_placement,
  )
