"""Profiles of clients' devices and networks, for the time of a round."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from fesem_jax.core import prng_streams
from fesem_jax.core.algorithm import ClientRound
from fesem_jax.core.batching import batch_width
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.traced_functions import called_by
from fesem_jax.core.traffic import Sent, bytes_of_model, bytes_sent
from fesem_jax.core.types import HostOrDeviceArray, Model
from fesem_jax.utils.ranges import check_choice

# Operations of a gradient in forward passes: the backward pass takes each product
# twice, for inputs and for weights.
GRADIENT = 3


class DeviceProfile(NamedTuple):
  """Clients' devices and networks: medians of speeds, which differ by exp(spread z)."""

  download: float  # bytes a second from the server to a client
  upload: float  # bytes a second from a client to the server
  compute: float  # floating point operations a second that training reaches
  overhead: float  # seconds that each client needs in a round whatever it does
  spread: float  # of the logarithm of the clients' speeds


# For the sources, see docs/costs.md.
PROFILES: Mapping[str, DeviceProfile] = {
  'phone': DeviceProfile(0.75e6, 0.25e6, 5e9, 10.0, 0.5),
  'broadband': DeviceProfile(12.5e6, 2.5e6, 50e9, 1.0, 0.5),
  'datacenter': DeviceProfile(1.25e9, 1.25e9, 10e12, 0.1, 0.1),
}


def profile(name: str | DeviceProfile, argument: str) -> DeviceProfile:
  """A profile, by its name or as it is; `UserError` on an unknown name."""
  if isinstance(name, DeviceProfile):
    return name
  check_choice(argument, name, tuple(PROFILES))
  return PROFILES[name]


def speeds(
  profile: DeviceProfile, key: jax.Array, client_ids: HostOrDeviceArray
) -> jax.Array:
  """[3, M] float32 download, upload and compute of clients; `key` is the start's."""
  key = prng_streams.fold(key, prng_streams.SPEEDS)

  def draw(client_id: jax.Array) -> jax.Array:
    return jax.random.normal(jax.random.fold_in(key, client_id), (3,))

  factors = jnp.exp(profile.spread * jax.vmap(draw)(jnp.asarray(client_ids)))
  return jnp.array(profile[:3], jnp.float32)[:, None] * factors.T


def seconds(
  profile: DeviceProfile, speeds: Any, down: Any, up: Any, operations: Any
) -> Any:
  """[S] seconds in which clients receive bytes, compute and send bytes."""
  download, upload, compute = speeds
  return profile.overhead + down / download + operations / compute + up / upload


def durations(
  profile: DeviceProfile, local: LocalTraining, data: FederatedData, key: jax.Array
) -> jax.Array:
  """[M] float32 seconds in which each client receives, trains and sends a model."""
  steps = local.num_steps(data, jnp.arange(data.num_clients))
  width = batch_width(local.schedule, data.max_examples)
  passes = GRADIENT * steps * jnp.minimum(width, jnp.asarray(data.sizes()))
  work = operations(local.model, data.example_shape) * passes
  client_speeds = speeds(profile, key, data.client_ids)
  return seconds(profile, client_speeds, bytes_of_model(local), bytes_sent(local), work)


def operations(model: Model, example_shape: tuple[int, ...]) -> float:
  """Floating point operations of a forward pass over an example, as XLA counts."""
  params = jax.eval_shape(model.init, jax.random.key(0))
  x = jax.ShapeDtypeStruct((1, *example_shape), np.float32)
  return _operations(jax.make_jaxpr(model.apply)(params, x))


def _operations(traced: ClosedJaxpr) -> float:
  """All operations of a traced function; XLA counts one step of its scans."""

  def once(traced: ClosedJaxpr) -> float:
    lowered = jax.jit(jaxpr_as_fun(traced)).lower(*traced.in_avals)
    return float((lowered.cost_analysis() or {}).get('flops', 0.0))

  scans = list(_scans(traced.jaxpr))
  more = (s['length'] * _operations(s['jaxpr']) - once(s['jaxpr']) for s in scans)
  return once(traced) + sum(more)


def _scans(jaxpr: Jaxpr) -> Iterator[Mapping[str, Any]]:
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'scan':
      yield equation.params
      continue
    for inner, _ in called_by(equation):
      yield from _scans(inner)


class SimulatedDevices:
  """A device for each client of `train` as arranged, drawn once by profile and seed."""

  def __init__(
    self, profile: DeviceProfile, seed: int, local: LocalTraining, train: FederatedData
  ):
    key = prng_streams.fold(jax.random.key(seed), prng_streams.INIT)
    client_speeds = jax.jit(speeds, static_argnums=0)(
      profile, key, np.asarray(train.client_ids)
    )
    self._profile, self._speeds = profile, np.asarray(client_speeds, np.float64)
    self._per_example = operations(local.model, train.example_shape)
    self._width = batch_width(local.schedule, train.max_examples)
    self._sizes, self._real = np.asarray(train.sizes()), len(train.info.names)

  def seconds(self, sent: Sent, clients: ClientRound, whole_batches: bool) -> float:
    """Seconds of a round, as long as its slowest client; 0 without any."""
    exist = np.asarray(clients.ids) < self._real
    ids, arrived, steps = (
      np.asarray(x)[exist] for x in (clients.ids, clients.arrived, clients.steps)
    )
    sizes = self._sizes[ids]
    batch = sizes if whole_batches else np.minimum(self._width, sizes)
    passes = (GRADIENT + sent.passes_of_step) * (steps * batch) + sent.passes * sizes
    down, up = (np.asarray(size, np.float64) for size in (sent.down, sent.up))
    work = self._per_example * passes
    client_seconds = seconds(self._profile, self._speeds[:, ids], down, up, work)
    return float(client_seconds[arrived].max(initial=0.0))
