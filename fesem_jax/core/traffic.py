"""Messages between the server and the clients of a method."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fesem_jax.core import parameter_names
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sending import Sends
from fesem_jax.utils.errors import check

# Bytes of a loss (float32) or of the index of a cluster (int32).
NUMBER = 4


class Drawn(NamedTuple):
  """The clients that are drawn for a round, on the host."""

  number: int  # of the round, from 1
  ids: np.ndarray  # [S] positions as arranged, without empty slots
  everyone: bool
  keep_clusters: bool = False  # of all clients


class Sent(NamedTuple):
  """Bytes that clients of a round receive and send, and their extra computations."""

  down: Any  # [] or [S] bytes to each client
  up: Any  # [] or [S] bytes from each client whose update arrives
  passes: Any = 0  # [] or [S] over all examples, forward; a gradient counts as three
  passes_of_step: int = 0  # of other models over the batch of a local step


class Traffic(NamedTuple):
  """The messages of a method.

  Frozen parameters are not sent. What only the simulator reports, such as training
  losses and evaluations, is not counted.

  Attributes:
    round_costs: (inputs, `Drawn`) -> `Sent`.
    start_bytes: number of clients -> bytes down and up of all before the first round.
    inputs: state -> arrays of it that `round_costs` and `start_up` read, or None.
    model: bytes of one model.
    whole_batches: whether a local step uses all examples of a client.
    start_up: `inputs` -> bytes up before the first round that depend on the data, or
      None.
    extras: what clients send in addition to one model a round, e.g. counts; '' for
      nothing. None: more models, or vectors without noise for privacy.
    models_up: models that a client sends in a round, at most.
    models_before: models that a client sends before the first round, at most.
    starters: number of clients -> messages that `start_bytes` adds up.
    seconds: `inputs` after a round -> its simulated seconds; None if a round takes as
      long as its slowest client.
  """

  round_costs: Callable[[Any, Drawn], Sent]
  start_bytes: Callable[[int], tuple[float, float]] = lambda num_clients: (0, 0)
  inputs: Callable[[Any], Any] | None = None
  model: int = 0
  whole_batches: bool = False
  start_up: Callable[[Any], float] | None = None
  extras: str | None = None
  models_up: int = 1
  models_before: int = 0
  starters: Callable[[int], int] = lambda num_clients: num_clients
  seconds: Callable[[Any], float] | None = None


def bytes_of_model(local: LocalTraining, but: tuple[str, ...] = ()) -> int:
  """Bytes of the trained parameters, except those that the names `but` choose."""
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  if but := but + local.unsent:
    params = parameter_names.split(params, but)[0]
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params))


def bytes_sent(local: LocalTraining) -> float:
  """Bytes of what a client sends in place of one model, as `local.sends` makes it."""
  size = bytes_of_model(local)
  compressed = local.sends and local.sends.num_bytes
  return compressed(size // NUMBER) if compressed else size


def same_for_all(
  down: float, up: float, passes: float = 0, passes_of_step: int = 0
) -> Traffic:
  """Traffic with equal messages for all clients and rounds; see `Sent`."""

  def round_costs(inputs: Any, drawn: Drawn) -> Sent:
    return Sent(down, up, passes, passes_of_step)

  return Traffic(round_costs, model=int(down), extras='')


def one_model(local: LocalTraining) -> Traffic:
  """Traffic of a method whose clients receive one model and send one."""
  size = bytes_of_model(local)
  return same_for_all(size, size)


def after_clustering(
  traffic: Traffic, common: bool = True, losses: int = 0, choices: int = 0
) -> Traffic:
  """Traffic of clients that train, from a `common` model or not, before round 1."""
  size, extras = traffic.model, 'training losses' if losses else traffic.extras
  down, up = size * common, size + NUMBER * losses
  if choices:
    down, up, extras = choices * size, size + NUMBER, 'the number of its first model'
  return traffic._replace(
    start_bytes=lambda num_clients: (num_clients * down, num_clients * up),
    extras=extras,
    models_before=1,
  )


def check_private(traffic: Traffic | None, sends: Sends | None) -> None:
  """Raises `UserError` if only some of what clients send would have noise."""
  if sends is not None and sends.privacy is not None and traffic is not None:
    fits = traffic.extras is not None
    check(fits, f'{sends.named}: not for clients that send more than one model')


def as_sent(traffic: Traffic, sends: Sends | None) -> Traffic:
  """The messages of a method whose models are sent as `sends` makes them."""
  if sends is None or sends.num_bytes is None or not traffic.model:
    return traffic
  size = traffic.model
  compressed = sends.num_bytes(size // NUMBER)

  def compressed_up(up: Any, most: int) -> Any:
    # Models, but not what is sent beside them, however much that is.
    return up - np.minimum(up // size, most) * (size - compressed)

  def round_costs(inputs: Any, drawn: Any) -> Any:
    sent = traffic.round_costs(inputs, drawn)
    return sent._replace(up=compressed_up(sent.up, traffic.models_up))

  def start_bytes(num_clients: int) -> tuple[float, float]:
    down, up = traffic.start_bytes(num_clients)
    # Of all clients: what each of them sends beside a model must not add up to one.
    count = max(1, traffic.starters(num_clients))
    return down, count * compressed_up(up / count, traffic.models_before)

  return traffic._replace(round_costs=round_costs, start_bytes=start_bytes)
