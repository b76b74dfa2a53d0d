"""Settings of local training, which methods receive."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from fesem_jax.core import batching, prng_streams, sampling, sharding
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.sending import Sends, Transform
from fesem_jax.core.types import Cohort, Model
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.ranges import Count, Index, Share, check_arguments, checked

# Parameters of the models that train side by side on a CPU: more leave its cache.
_MOST_PARAMETERS = 2**18

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
  """Placement and computation of clients on devices; see `LocalTraining`.

  Results change with `precision`, with `data_placement` if rounds draw some clients of
  split data, and otherwise by rounding only. By default, `mesh` has all devices, and
  the number of clients side by side depends on model and device.
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
    optimizer: an Optax optimizer. Random keys in its state, as of `optax.add_noise`,
      are replaced by keys of the client and the round.
    schedule: batch size and local epochs or steps.
    clients_per_chunk: C, clients trained side by side on one device.
    mesh: devices that the cohort is split over.
    dropout_rate: probability that the update of a client never arrives.
    lr_schedule: round, from 0 -> factor of the updates of the local optimizer, e.g.
      `optax.cosine_decay_schedule(1.0, rounds)`; None is 1. Training outside of rounds
      uses the full rate.
    shared_start: whether clients with the same start store dense kernels as changes
      from it: 'auto', 'on' or 'off'.
    clients_per_shared_start: C with a shared start; 0: automatic.
    precision: of the products of local training and fine-tuning on accelerators:
      'highest' is float32, 'high' three passes on a TPU (16 bits), 'default' one (8
      bits); both are TensorFloat-32 on a GPU. Everything else is float32.
    local_lr_schedule: local step, from 0 in each training -> further factor of its
      update; None is 1.
    augmentation: (key, x [B, ...]) -> augmented examples of a local step, or None.
    sends: what clients send instead of their models, see `sending`; None: the models.
    data_placement: where examples are: 'replicated', 'sharded' by client, or 'auto',
      which splits large data.
    batch_stats: running statistics of BatchNorm are averaged ('average'), or never sent
      ('local').
    keep_optimizer_state: whether clients keep the optimizer's state from round to
      round; fine-tuning resets it.
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

  @property
  def _layers(self) -> list[jax.ShapeDtypeStruct]:
    return jax.tree.leaves(jax.eval_shape(self.model.init, jax.random.key(0)))

  @property
  def num_parameters(self) -> int:
    """P."""
    return sum(x.size for x in self._layers)

  @property
  def convolves(self) -> bool:
    """True if a parameter has more than two axes."""
    return any(x.ndim > 2 for x in self._layers)

  def concurrent_parameters(self, num_clients: int) -> int:
    """Parameters of the models that train side by side on a device."""
    clients = min(self.clients_per_chunk, -(-num_clients // self.mesh.size))
    return max(1, clients * self.num_parameters)

  def max_concurrent(self, num_clients: int) -> int:
    """How many trainings of so many clients are faster side by side, if on a CPU."""
    if self.mesh.devices.flat[0].platform != 'cpu':
      return 2**10
    # Clients that convolve train one by one.
    parameters = self.concurrent_parameters(num_clients)
    return 1 if self.convolves else _MOST_PARAMETERS // parameters

  @property
  def unsent(self) -> tuple[str, ...]:
    """Paths of the statistics that each client keeps and never sends."""
    return self.model.statistics if self.batch_stats == 'local' else ()

  def check_no_statistics(self, method: str) -> None:
    """Raises `UserError` if the model has running statistics, e.g. of BatchNorm."""
    plain = not self.model.statistics
    check(plain, f'{method}: not defined for BatchNorm; choose a model with GroupNorm')

  def check_no_sends(self, method: str, sent: str) -> None:
    """Raises `UserError` on `sends`; the clients of `method` send what `sent` says."""
    if self.sends is not None:
      raise UserError(f'{self.sends.named}: {method} cannot; its clients send {sent}')

  def arrived(self, key: jax.Array, data: FederatedData, ids: jax.Array) -> jax.Array:
    """[S] bool, False for clients `ids` that drop out of the round of this key."""
    return ~sampling.coin(key, data, ids, self.dropout_rate, prng_streams.DROPOUT)

  def rate(self, cohort: Cohort) -> jax.Array | None:
    """The factor [] float32 of a cohort's local updates; None is 1."""
    if self.lr_schedule is None or cohort.round is None:
      return None
    return jnp.asarray(self.lr_schedule(cohort.round), jnp.float32)

  def num_steps(
    self, data: FederatedData, clients: jax.Array, epochs: jax.Array | None = None
  ) -> jax.Array:
    """[S] int32 local steps of clients at positions [S]; `epochs` [S] are a limit."""
    sizes = data.sizes(clients)
    return batching.num_steps(self.schedule, sizes, data.max_examples, epochs)

  def rate_of_step(self, step: jax.Array, rate: jax.Array | None) -> jax.Array | None:
    """The cohort's `rate` times that of a local step [] int32 from 0; None is 1."""
    if self.local_lr_schedule is None:
      return rate
    factor = jnp.asarray(self.local_lr_schedule(step), jnp.float32)
    return factor if rate is None else rate * factor

  def sum_over_steps(self, steps: jax.Array, most: int) -> jax.Array:
    """[] sum of `local_lr_schedule` over the first `steps` [] int32 of `most` steps."""
    if self.local_lr_schedule is None:
      return steps
    numbers = jnp.arange(most, dtype=jnp.int32)
    rates: Any = jax.vmap(lambda step: self.rate_of_step(step, None))(numbers)
    return jnp.where(numbers < steps, rates, 0.0).sum()


@checked
def local_training(
  model: Model,
  optimizer: optax.GradientTransformation,
  *,
  batch_size: Index = 10,
  epochs: Count = 1,
  lr_schedule: RoundSchedule | None = None,
  sends: Sends | Transform | None = None,
  machine: Machine = Machine(),
) -> LocalTraining:
  """Builds a `LocalTraining`, with defaults chosen for the machine.

  `local._replace(...)` sets its other fields, which `simulate` checks.

  Arguments as in `LocalTraining` and `Schedule`; as `sends`, a function (key, start,
  trained) -> sent is enough. Raises `UserError`, naming the argument at fault.
  """
  check(isinstance(model, Model), 'model: must be a Model, as of models.from_flax')
  is_optimizer = hasattr(optimizer, 'update')
  check(is_optimizer, f'optimizer: must be one of Optax; got {optimizer!r:.40}')
  starts = lr_schedule is None or lr_schedule(0) > 0
  check(starts, 'lr_schedule: must be positive in the first round')
  check_arguments(Machine, machine._asdict())
  mesh, chunk, shared_start, precision, data_placement = machine
  free = not (chunk and sharding.is_identical)  # Rounding depends on this number.
  check(free, 'clients_per_chunk: cannot be chosen with identical bits; leave it out')
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
