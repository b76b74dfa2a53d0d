"""Local training: its settings, as methods receive them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from fesem_jax.core import sharding
from fesem_jax.core.batching import Schedule
from fesem_jax.core.types import Cohort, Model
from fesem_jax.utils.errors import (
  UserError,
  argument,
  check_at_least,
  check_choice,
  check_share,
)

# Round [] int32, counted from 0 -> multiplier [] of the round's local updates.
RoundSchedule = Callable[[Any], Any]
# (key, x [B, ...]) -> x [B, ...] as a local step sees it.
Augment = Callable[[jax.Array, jax.Array], jax.Array]
# Local step [] int32, counted from 0 in each round -> multiplier [] of its update.
StepSchedule = Callable[[Any], Any]


SHARED_START = ('auto', 'on', 'off')
# Of products of float32 numbers, by what an accelerator takes of their factors.
PRECISIONS = ('highest', 'high', 'default')


class LocalTraining(NamedTuple):
  """How clients train, and how they are laid out on the machine.

  Attributes:
    model: see `Model`.
    optimizer: any Optax optimizer; its state starts anew in every round.
    schedule: batch size and local epochs or steps.
    clients_per_chunk: C, clients trained side by side on one device; it decides the
      speed, and changes results by rounding only.
    mesh: devices that the cohort is split over; they change nothing either.
    dropout_rate: probability that a client of a round drops out, so that its
      update never arrives.
    lr_schedule: round, counted from 0 -> what the updates of the local optimizer are
      multiplied by in it, w <- w + lr_schedule(round) * update; None is 1. Since the
      optimizer starts anew in every round, that is a schedule of the learning rate for
      any optimizer whose updates are proportional to it (SGD, with momentum too, and
      Adam); e.g. `optax.cosine_decay_schedule(1.0, rounds)`. Training outside of rounds
      (before the first, fine-tuning, for figures) is at the full rate.
    shared_start: whether clients that start from the same weights keep dense kernels as
      changes to them: 'auto', 'on' or 'off'; see `shared_start`. It changes results by
      rounding only.
    clients_per_shared_start: C where they do; 0 chooses by the kernels and the device.
    precision: of the products of local training, forward and backward, on accelerators:
      'highest' as float32 (six passes on a TPU, none rounded on a GPU), 'high' (three
      passes, about 16 bits of each factor; TensorFloat-32 on a GPU) or 'default' (one
      pass, 8 bits; TensorFloat-32). Fine-tuning is local training too. Sums stay
      float32, and so does everything else: what methods compare and average, losses
      that clients choose a model by, and measuring. A CPU always takes float32.
    local_lr_schedule: local step, counted from 0 wherever clients begin to train ->
      what its update is multiplied by, beside `lr_schedule`; None is 1. Fine-tuning and
      training before the first round follow it too.
    augmentation: (key, x [B, ...]) -> what a local step sees of its examples, e.g.
      `augmentation.Augmentation`; the key is folded from the client, the round and the
      step. None leaves them as they are, as measuring always does, and losses that
      clients choose a model by.
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

  def rate(self, cohort: Cohort) -> jax.Array | None:
    """The multiplier [] float32 of a cohort's local updates; None where it is 1."""
    if self.lr_schedule is None or cohort.round is None:
      return None
    return jnp.asarray(self.lr_schedule(cohort.round), jnp.float32)

  def rate_of_step(self, step: jax.Array, rate: jax.Array | None) -> jax.Array | None:
    """The multiplier [] float32 of one local step's update; None where it is 1.

    Args:
      step: [] int32, counted from 0.
      rate: [] float32 from `rate`, or None.
    """
    if self.local_lr_schedule is None:
      return rate
    of_step = jnp.asarray(self.local_lr_schedule(step), jnp.float32)
    return of_step if rate is None else rate * of_step

  def sum_over_steps(self, steps: jax.Array, most: int) -> jax.Array:
    """[] sum of what `local_lr_schedule` gives the first `steps` steps.

    Args:
      steps: [] int32, at most `most`.
      most: see `batching.most_steps`.
    """
    if self.local_lr_schedule is None:
      return steps
    every = jnp.arange(most, dtype=jnp.int32)
    rates: Any = jax.vmap(lambda step: self.rate_of_step(step, None))(every)
    return jnp.where(every < steps, rates, 0.0).sum()


def local_training(
  model: Model,
  optimizer: optax.GradientTransformation,
  *,
  num_clients: int,
  batch_size: int = 10,
  epochs: int = 1,
  steps: int = 0,
  clients_per_chunk: int = 0,
  mesh: Mesh | None = None,
  dropout_rate: float = 0.0,
  lr_schedule: RoundSchedule | None = None,
  shared_start: str = 'auto',
  precision: str = 'highest',
  local_lr_schedule: StepSchedule | None = None,
  augmentation: Augment | None = None,
) -> LocalTraining:
  """A `LocalTraining` with what is left out chosen for the machine.

  Args:
    model: see `Model`.
    optimizer: any Optax optimizer, e.g. `optax.sgd(0.1)`.
    num_clients: clients of a round.
    batch_size: see `Schedule`.
    epochs: see `Schedule`.
    steps: see `Schedule`.
    clients_per_chunk: 0 chooses by the model and the device.
    mesh: all devices by default.
    dropout_rate: see `LocalTraining`.
    lr_schedule: see `LocalTraining`.
    shared_start: see `LocalTraining`.
    precision: see `LocalTraining`.
    local_lr_schedule: see `LocalTraining`.
    augmentation: see `LocalTraining`.

  Raises:
    UserError: on a number or mode out of range, or a schedule that does not give one
      positive number for the first round or step.
  """
  check_at_least(0, batch_size=batch_size, clients_per_chunk=clients_per_chunk)
  check_at_least(0, steps=steps)
  check_at_least(1, epochs=epochs)
  check_share(dropout_rate=dropout_rate)
  check_choice('shared_start', shared_start, SHARED_START)
  check_choice('precision', precision, PRECISIONS)
  _check_schedule('lr_schedule', lr_schedule, 'round')
  _check_schedule('local_lr_schedule', local_lr_schedule, 'step')
  mesh = sharding.client_mesh() if mesh is None else mesh
  params = jax.eval_shape(model.init, jax.random.key(0))
  chunk = clients_per_chunk or sharding.default_clients_per_chunk(
    params, num_clients, mesh
  )
  schedule = Schedule(batch_size, epochs, steps)
  return LocalTraining(
    model,
    optimizer,
    schedule,
    chunk,
    mesh,
    dropout_rate,
    lr_schedule,
    shared_start,
    clients_per_chunk,
    precision,
    local_lr_schedule,
    augmentation,
  )


def _check_schedule(name: str, schedule: Callable[[Any], Any] | None, of: str) -> None:
  """Raises `UserError` unless a schedule gives a positive number for its first number.

  The number is traced, as it will be: a schedule that branches on it in Python fails.

  Args:
    name: of the argument.
    schedule: None if there is none.
    of: what it is a function of, for errors.
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
