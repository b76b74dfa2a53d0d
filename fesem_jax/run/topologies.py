"""Chips that programs can be compiled for without the hardware."""

import os

import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from fesem_jax.core.chips import CHIPS
from fesem_jax.core.sharding import CLIENTS, client_mesh
from fesem_jax.utils.errors import check

# Otherwise libtpu queries the network for a TPU, reports that there is none, and cannot
# be loaded by two processes.
_ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}

# Names of the devices of this machine.
HERE = ('local', 'cpu', 'gpu')


def mesh_of(topology: str, num_devices: int = 0) -> Mesh:
  """A mesh of chips for compilation ahead of time.

  `topology` is 'KIND:SHAPE' of TPU chips, e.g. 'v5e:2x4', or one of `HERE` for the
  devices of this machine, which can also run the programs. The mesh has the first
  `num_devices` chips; 0 uses all. Raises `UserError` on an unknown topology or too many
  chips.
  """
  if topology in HERE:
    mesh = client_mesh(num_devices)
    platform = mesh.devices.flat[0].platform
    right = topology in ('local', platform)
    check(right, f'topology: is {topology}, but the devices here are {platform}')
    return mesh
  kind, colon, _ = topology.partition(':')
  right = bool(colon) and kind in CHIPS
  check(right, f'topology: unknown value {topology!r:.30}; try one like v5e:2x4')
  for name, value in _ENVIRONMENT.items():
    if 'WARNING' in os.environ.get(name, 'WARNING'):  # JAX's value without a TPU.
      os.environ[name] = value
  description = topologies.get_topology_desc(platform='tpu', topology_name=topology)
  devices = description.devices
  count = len(devices)
  check(num_devices <= count, f'num_devices: {topology} has {count}; got {num_devices}')
  return Mesh(np.array(devices[: num_devices or len(devices)]), (CLIENTS,))
