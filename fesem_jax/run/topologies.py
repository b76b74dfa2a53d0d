"""Chips that programs can be compiled for without the hardware."""

import importlib.util
import os

import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from fesem_jax.core.chips import CHIPS
from fesem_jax.core.sharding import CLIENTS, client_mesh
from fesem_jax.utils.errors import UserError, argument

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
  `num_devices` chips; 0 uses all. Raises `UserError` on an unknown topology, too many
  chips, or without libtpu.
  """
  if topology in HERE:
    mesh = client_mesh(num_devices)
    platform = mesh.devices.flat[0].platform
    if topology not in ('local', platform):
      raise UserError(
        f'{argument("topology", topology)}, but the devices of this machine are of '
        f'the platform {platform}.'
      )
    return mesh
  kind, colon, _ = topology.partition(':')
  if kind not in CHIPS or not colon:
    known = ', '.join(chip.example for chip in CHIPS.values())
    raise UserError(
      f'{argument("topology", topology)} must be {", ".join(HERE)}, or KIND:SHAPE of '
      f'{", ".join(CHIPS)}, e.g. {known}.'
    )
  if importlib.util.find_spec('libtpu') is None:
    raise UserError(
      f'{argument("topology", topology)} needs the compiler for TPUs; install it: '
      "pip install 'fesem_jax[tpu]'."
    )
  for name, value in _ENVIRONMENT.items():
    if 'WARNING' in os.environ.get(name, 'WARNING'):  # JAX's value without a TPU.
      os.environ[name] = value
  try:
    description = topologies.get_topology_desc(platform='tpu', topology_name=topology)
  # libtpu and JAX raise one or another of these on a name that they do not know.
  except (RuntimeError, ImportError, ValueError, NotImplementedError) as e:
    reason = str(e).splitlines()[0][:200] if str(e) else type(e).__name__
    raise UserError(
      f'{argument("topology", topology)} is not one that libtpu knows ({reason}).'
    ) from e
  devices = description.devices
  if num_devices > len(devices):
    raise UserError(
      f'{argument("num_devices", num_devices)}, but {topology} has {len(devices)}.'
    )
  return Mesh(np.array(devices[: num_devices or len(devices)]), (CLIENTS,))
