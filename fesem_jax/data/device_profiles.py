"""Profiles of clients' devices and networks, for the time of a round."""

import dataclasses
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

# Multiplications and additions of a gradient, in those of a forward pass: the backward
# pass takes the products of the forward pass twice, once for inputs, once for weights.
GRADIENT = 3


@dataclasses.dataclass(frozen=True)
class DeviceProfile:
  """Clients' devices and their connection to the server.

  The speeds are medians. Each client's own are drawn once, from (seed, client id),
  alike for all methods:
  those of computing, receiving and sending times exp(spread z), z standard normal and
  drawn for each of the three.
  """

  download: float  # bytes a second from the server to a client
  upload: float  # bytes a second from a client to the server
  compute: float  # floating point operations a second that training reaches
  overhead: float  # seconds that each client needs in a round whatever it does
  spread: float  # of the logarithm of the clients' speeds
  source: str  # where the numbers come from


PROFILES: Mapping[str, DeviceProfile] = {
  'phone': DeviceProfile(
    0.75e6, 0.25e6, 5e9, 10.0, 0.5,
    'Wang et al., "A Field Guide to Federated Optimization", 2021: 0.75 MB/s down, '
    '0.25 MB/s up and 10 s a round, estimated from a system in use (quoted '
    'second-hand); 5 GFLOP/s on the CPU of a phone and the spread are assumptions.',
  ),
  'broadband': DeviceProfile(
    12.5e6, 2.5e6, 50e9, 1.0, 0.5,
    'the benchmark of fixed broadband of the FCC (2024), 100 Mbit/s down and 20 Mbit/s '
    'up; 50 GFLOP/s on the CPU of a computer at home, 1 s a round and the spread are '
    'assumptions.',
  ),
  'datacenter': DeviceProfile(
    1.25e9, 1.25e9, 10e12, 0.1, 0.1,
    'a 10 Gbit/s Ethernet both ways; 10 TFLOP/s on an accelerator, 0.1 s a round and '
    'the spread are assumptions.',
  ),
}  # fmt: skip


def profile(name: str | DeviceProfile, named: str = 'device_profile') -> DeviceProfile:
  """A profile by its name, or itself; raises `UserError` on an unknown name.

  `named` is what the error calls the argument.
  """
  if isinstance(name, DeviceProfile):
    return name
  check_choice(named, name, tuple(PROFILES))
  return PROFILES[name]


class Speeds(NamedTuple):
  """Clients' own speeds: [M] float64 each, as in `DeviceProfile`."""

  download: np.ndarray
  upload: np.ndarray
  compute: np.ndarray


def speeds(of: DeviceProfile, seed: int, client_ids: np.ndarray) -> Speeds:
  """The speeds of M clients, which depend on the seed and a client's id alone.

  `client_ids` is [M] int32.
  """
  key = prng_streams.fold(jax.random.key(seed), prng_streams.INIT)
  ids = np.asarray(client_ids, np.int32)
  factors = np.exp(of.spread * np.asarray(jax.jit(_draws)(key, ids), np.float64))
  return Speeds(*(factors * _medians(of)).T)


def _draws(key: jax.Array, client_ids: HostOrDeviceArray) -> jax.Array:
  """[M, 3] float32 standard normal draws of clients; `key` is that of a start."""
  key = prng_streams.fold(key, prng_streams.SPEEDS)

  def draw(client_id: jax.Array) -> jax.Array:
    return jax.random.normal(jax.random.fold_in(key, client_id), (3,))

  return jax.vmap(draw)(jnp.asarray(client_ids))


def _medians(of: DeviceProfile) -> np.ndarray:
  return np.array([of.download, of.upload, of.compute])


def durations(
  of: DeviceProfile, local: LocalTraining, data: FederatedData, key: jax.Array
) -> jax.Array:
  """[M] float32 seconds in which each client receives, trains and sends a model.

  For methods in whose programs time matters. `key` is that of the start of the run, so
  that the devices are those of `speeds`.
  """
  size = bytes_of_model(local)
  draws = _draws(key, data.client_ids)
  down, up, compute = (
    jnp.float32(median) * jnp.exp(of.spread * draws[:, i])
    for i, median in enumerate(_medians(of))
  )
  sizes = jnp.asarray(data.sizes())
  steps = local.num_steps(data, jnp.arange(data.num_clients))
  width = batch_width(local.schedule, data.max_examples)
  count = GRADIENT * steps * jnp.minimum(width, sizes)
  per_example = operations(local.model, data.example_shape)
  return (
    of.overhead + size / down + per_example * count / compute + bytes_sent(local) / up
  )


def operations(model: Model, example_shape: tuple[int, ...]) -> float:
  """Floating point operations of a forward pass over an example, as XLA counts.

  XLA counts the body of a loop once; scans count all their steps.
  """
  params = jax.eval_shape(model.init, jax.random.key(0))
  x = jax.ShapeDtypeStruct((1, *example_shape), np.float32)
  return _operations(jax.make_jaxpr(model.apply)(params, x))


def _operations(of: ClosedJaxpr) -> float:
  """All operations of a traced function."""
  scans = list(_scans(of.jaxpr))
  more = (s['length'] * _operations(s['jaxpr']) - _once(s['jaxpr']) for s in scans)
  return _once(of) + sum(more)


def _once(of: ClosedJaxpr) -> float:
  """Operations of a traced function with one step of each of its scans."""
  args = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in of.in_avals]
  counted = jax.jit(jaxpr_as_fun(of)).lower(*args).cost_analysis() or {}
  return float(counted.get('flops', 0.0))


def _scans(of: Jaxpr) -> Iterator[Mapping[str, Any]]:
  """The parameters of the scans of a function that are in no other scan."""
  for equation in of.eqns:
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
    self._overhead = profile.overhead
    self._speeds = speeds(profile, seed, np.asarray(train.client_ids))
    self._per_example = operations(local.model, train.example_shape)
    self._width = batch_width(local.schedule, train.max_examples)
    self._sizes, self._real = np.asarray(train.sizes()), len(train.info.names)

  def seconds(self, sent: Sent, clients: ClientRound, whole_batches: bool) -> float:
    """Seconds of a round, which takes as long as its slowest client; 0 without any.

    `sent` is what each client of the round receives and sends; `whole_batches` says
    whether a step is on all examples of a client.
    """
    exist = np.asarray(clients.ids) < self._real
    here = np.asarray(clients.arrived)[exist]
    ids, steps = np.asarray(clients.ids)[exist], np.asarray(clients.steps)[exist]
    sizes, own = self._sizes[ids], Speeds(*(x[ids] for x in self._speeds))
    batch = sizes if whole_batches else np.minimum(self._width, sizes)
    count = (GRADIENT + sent.passes_of_step) * (steps * batch) + sent.passes * sizes
    each = (
      self._overhead
      + np.asarray(sent.down, float) / own.download
      + self._per_example * count / own.compute
      + np.asarray(sent.up, float) / own.upload
    )
    return float(each[here].max(initial=0.0))
