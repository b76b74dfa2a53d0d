"""Settings of local training, which methods receive."""

import contextvars
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from fesem_jax.core import (
  batching,
  local_optimizers,
  prng_streams,
  sampling,
  sharding,
)
from fesem_jax.core.batching import Schedule
from fesem_jax.core.client_work import ClientWork
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.sending import OfClient, Sends, check_sends, sends_of
from fesem_jax.core.types import Cohort, Model
from fesem_jax.utils import old_names
from fesem_jax.utils.display import kind_of
from fesem_jax.utils.errors import (
  UserError,
  argument,
  check_at_least,
  check_choice,
  check_share,
  check_whole,
)
from fesem_jax.utils.notices import warn_once

# Round [] int32, counted from 0 -> factor [] of the round's local updates.
RoundSchedule = Callable[[Any], Any]
# (key, x [B, ...]) -> augmented x [B, ...] for a local step.
Augment = Callable[[jax.Array, jax.Array], jax.Array]
# Local step [] int32, counted from 0 in each round -> factor [] of its update.
StepSchedule = Callable[[Any], Any]


# What becomes of the running statistics of clients' batches.
BATCH_STATS = ('average', 'local')
SHARED_START = ('auto', 'on', 'off')
# Of float32 products on accelerators.
PRECISIONS = ('highest', 'high', 'default')


DATA_PLACEMENTS = ('auto', 'replicated', 'sharded')


# Whether a round is traced, and no training before the first one.
IN_ROUND: contextvars.ContextVar[bool] = contextvars.ContextVar(
  'in_round', default=False
)


class Machine(NamedTuple):
  """How clients are placed on devices and computed there.

  Results change with `precision`, with `data_placement` where it splits the data and a
  round draws some of the clients, and otherwise by rounding only; see `LocalTraining`.

  Attributes:
    mesh: devices, as of `client_mesh`; None takes all.
    clients_per_chunk: clients trained side by side on one device; 0 chooses the number
      by the model and the device.
    shared_start: 'auto', 'on' or 'off'.
    precision: 'highest', 'high' or 'default'.
    data_placement: 'auto', 'replicated' or 'sharded'.
  """

  mesh: Mesh | None = None
  clients_per_chunk: int = 0
  shared_start: str = 'auto'
  precision: str = 'highest'
  data_placement: str = 'auto'


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
  clients_per_chunk: int
  mesh: Mesh
  dropout_rate: float = 0.0
  lr_schedule: RoundSchedule | None = None
  shared_start: str = 'auto'
  clients_per_shared_start: int = 0
  precision: str = 'highest'
  local_lr_schedule: StepSchedule | None = None
  augmentation: Augment | None = None
  sends: Sends | None = None
  data_placement: str = 'auto'
  batch_stats: str = 'average'
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
    if self.model.statistics:
      raise UserError(
        f'{argument("algorithm", method)} moves or compares models in ways that the '
        'running statistics of BatchNorm do not allow; choose a model with GroupNorm, '
        'e.g. resnet8, or a method that averages models, e.g. fed_avg, fesem or fed_bn.'
      )

  def check_no_sends(self, method: str, sent: str) -> None:
    """Raises `UserError` if clients are to send other models than they trained.

    `sent` says in words what the clients of the `method` send.
    """
    if self.sends is not None:
      raise UserError(
        f'`{self.sends.named}` is not defined for {method}, whose clients send {sent}; '
        'choose another method.'
      )

  def arrived(self, key: jax.Array, data: FederatedData, ids: jax.Array) -> jax.Array:
    """[S] bool, False for clients `ids` that drop out of the round of this key."""
    return ~sampling.coin(key, data, ids, self.dropout_rate, prng_streams.DROPOUT)

  def rate(self, cohort: Cohort) -> jax.Array | None:
    """The factor [] float32 of a cohort's local updates; None if it is 1.

    Raises `UserError` within a round on a cohort that does not know its number.
    """
    if self.lr_schedule is None:
      return None
    if cohort.round is None:
      if IN_ROUND.get():
        raise UserError(
          '`lr_schedule` needs the number of the round, which a cohort of the method '
          'lacks; give it that of the cohort of the round, e.g. '
          'fj.everyone(data, cohort.round).'
        )
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


# Arguments of `local_training` until 0.3 -> what is given in their place.
_NOW = {
  'num_clients': 'leave it out',
  'steps': 'local._replace(schedule=fj.Schedule(batch_size, steps=...))',
  **{
    name: f'local._replace({name}=...)'
    for name in ('dropout_rate', 'local_lr_schedule', 'augmentation')
  },
  **{name: f'machine=fj.Machine({name}=...)' for name in Machine._fields},
}


def _with_old_names(
  build: Callable[..., LocalTraining], given: dict[str, Any], old: dict[str, Any]
) -> LocalTraining:
  placed = {name: x for name, x in old.items() if name in Machine._fields}
  machine = given.get('machine', Machine())._replace(**placed)
  local = build(**given | {'machine': machine})
  others = {name: x for name, x in old.items() if name in LocalTraining._fields}
  others = {name: x for name, x in others.items() if name not in placed}
  if 'steps' in old:
    others['schedule'] = local.schedule._replace(steps=old['steps'])
  local = local._replace(**others)
  check_training(local)
  return local


@old_names.accepts(_NOW, _with_old_names)
def local_training(
  model: Model,
  optimizer: optax.GradientTransformation,
  *,
  batch_size: int = 10,
  epochs: int = 1,
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
    UserError: if a number or mode is out of range, the model is no `Model`, clients
      cannot use the optimizer, or a schedule does not return one positive number for
      the first round or step.
  """
  if not isinstance(model, Model):
    raise UserError(
      f'`model` is {kind_of(model)}, not a Model; make one of a Flax module '
      'with models.from_flax(module, example_shape).'
    )
  if not isinstance(machine, Machine):
    raise UserError(
      f'`machine` is {kind_of(machine)}, not a fesem_jax.Machine; give e.g. '
      'Machine(mesh=mesh).'
    )
  mesh, chunk, shared_start, precision, data_placement = machine
  if not isinstance(mesh, Mesh | None):
    raise UserError(
      f'`mesh` is {kind_of(mesh)}; give the devices, e.g. mesh=fj.client_mesh(2).'
    )
  check_whole(clients_per_chunk=chunk)
  check_at_least(0, clients_per_chunk=chunk)
  mesh = sharding.client_mesh() if mesh is None else mesh
  params = jax.eval_shape(model.init, jax.random.key(0))
  local_optimizers.check(optimizer, params)
  sends = sends_of(sends)
  if sends is not None:
    check_sends(sends, model)
  local = LocalTraining(
    model,
    optimizer,
    Schedule(batch_size, epochs),
    chunk or sharding.default_clients_per_chunk(params, mesh),
    mesh,
    lr_schedule=lr_schedule,
    shared_start=shared_start,
    clients_per_shared_start=chunk,
    precision=precision,
    sends=sends,
    data_placement=data_placement,
  )
  check_training(local)
  return local


def check_training(local: LocalTraining) -> None:
  """Raises `UserError` on a number, mode or schedule that is out of range."""
  if not isinstance(local.schedule, Schedule):
    raise UserError(
      f'`schedule` is {kind_of(local.schedule)}, not a Schedule; give e.g. '
      'Schedule(batch_size=10, steps=5).'
    )
  batch_size, epochs, steps = local.schedule
  check_whole(batch_size=batch_size, epochs=epochs, steps=steps)
  check_at_least(0, batch_size=batch_size, steps=steps)
  check_at_least(1, epochs=epochs)
  check_share(dropout_rate=local.dropout_rate)
  check_choice('shared_start', local.shared_start, SHARED_START)
  check_choice('precision', local.precision, PRECISIONS)
  check_choice('data_placement', local.data_placement, DATA_PLACEMENTS)
  if not isinstance(local.sends, Sends | None):
    raise UserError(
      f'`sends` is {kind_of(local.sends)}, not a fesem_jax.Sends; give e.g. '
      'fj.Sends(function).'
    )
  _check_schedule('lr_schedule', local.lr_schedule, 'round')
  _check_schedule('local_lr_schedule', local.local_lr_schedule, 'step')
  check_choice('batch_stats', local.batch_stats, BATCH_STATS)
  if local.keep_optimizer_state:
    params = jax.eval_shape(local.model.init, jax.random.key(0))
    local_optimizers.check_kept(local.optimizer, params)
  _check_statistics(local.model, local.batch_stats, local.sends)
  if local.work is not None:
    local.work.check_schedule(local.schedule)
  if steps and epochs > 1:
    warn_once(
      f'{argument("epochs", epochs)} has no effect: {argument("steps", steps)}.'
    )


def _check_statistics(model: Model, batch_stats: str, sends: Sends | None) -> None:
  """Raises `UserError` on statistics of batches that cannot be treated so."""
  if batch_stats != 'average' and not model.statistics:
    raise UserError(
      f'{argument("batch_stats", batch_stats)} needs a model with running statistics, '
      'such as resnet8_bn; this one has no BatchNorm.'
    )
  private = sends is not None and sends.privacy is not None
  if private and model.statistics and batch_stats == 'average':
    raise UserError(
      'The noise of `dp` would make variances of BatchNorm negative; choose '
      '`batch_stats=local`, or a model with GroupNorm.'
    )


def _check_schedule(name: str, schedule: Callable[[Any], Any] | None, of: str) -> None:
  """Raises `UserError` unless a schedule returns a positive number for 0.

  Its argument is traced, as in training, so that branches on it in Python fail. None is
  no schedule; the argument's `name`, and `of`, 'round' or 'step', are for messages.
  """
  if schedule is None:
    return
  try:
    first = float(jax.jit(schedule)(jnp.int32(0)))
  except (TypeError, ValueError, jax.errors.JAXTypeError) as e:
    raise UserError(
      f'{argument(name)} must be a function of JAX from the number of a {of} to one '
      f'number, e.g. optax.cosine_decay_schedule(1.0, {of}s) ({e}).'
    ) from e
  if not 0 < first < jnp.inf:
    raise UserError(
      f'{argument(name)} must be positive, but gives {first} for the first {of}.'
    )


def check_local(x: Any) -> None:
  """Raises `UserError` unless `x` is local training."""
  if not isinstance(x, LocalTraining):
    raise UserError(
      f'`local` is {kind_of(x)}, not a LocalTraining; make one with '
      'local_training(model, optimizer).'
    )
