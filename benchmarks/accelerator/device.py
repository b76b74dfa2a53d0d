"""Part a: the device, and the peaks that other figures are compared with."""

import functools
import importlib.metadata
import os
import subprocess
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import common
from benchmarks.accelerator import measuring
from benchmarks.accelerator.measuring import Watch
from fesem_jax.utils import provenance

# Name of a peak -> dtype, and the precision of its product.
PRODUCTS = {
  'products float32': (jnp.float32, 'highest'),
  'products TF32': (jnp.float32, 'default'),
  'products bfloat16': (jnp.bfloat16, 'default'),
  'products float32, high': (jnp.float32, 'high'),
}


def measure(watch: Watch) -> None:
  """Says what the device is, and its peaks."""
  measuring.setup()
  mesh = measuring.chip()
  watch.say(_described(mesh))
  for fn in (_products, _bandwidth, _loops, _transfers):
    watch.tried(functools.partial(fn, watch), what=fn.__name__)


def _described(mesh: Any) -> dict[str, Any]:
  device = mesh.devices.flat[0]
  described = provenance.describe(mesh)
  others = {}
  for name in ('torch', 'jax-cuda13-plugin', 'nvidia-cudnn-cu13', 'nvidia-cublas'):
    try:
      others[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  stats = device.memory_stats() or {}
  try:
    query = 'name,driver_version,memory.total,clocks.max.sm,power.limit'
    command = ['nvidia-smi', f'--query-gpu={query}', '--format=csv,noheader']
    smi = subprocess.run(command, capture_output=True, text=True, check=True).stdout
  except (OSError, subprocess.CalledProcessError):
    smi = ''
  return {
    'what': 'device',
    'platform': device.platform,
    'kind': device.device_kind,
    'platform_version': getattr(device.client, 'platform_version', '')[:120],
    'driver': smi.strip(),
    'bytes_limit': stats.get('bytes_limit'),
    'processor': common.processor(),
    'cores': os.cpu_count(),
    'versions': described['versions'] | others,
    'commit': described['commit'],
    'defaults': {
      'matmul_precision': jax.config.values['jax_default_matmul_precision'],
      'xla_flags': os.environ.get('XLA_FLAGS', ''),
    },
  }


def _normal(shape: tuple[int, ...], dtype: Any = jnp.float32, seed: int = 0) -> Any:
  return jax.jit(
    lambda: jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)
  )()


def _products(watch: Watch) -> None:
  """Operations a second of large products, and of many small ones."""
  size = 256 if watch.small else 8192
  for name, (dtype, precision) in PRODUCTS.items():
    a, b = _normal((size, size), dtype), _normal((size, size), dtype, 1)
    product = jax.jit(lambda a, b, p=precision: jnp.dot(a, b, precision=p))
    timing = measuring.timed(functools.partial(product, a, b), calls=5)
    watch.say(
      {
        'what': name, 'value': 2 * size**3 / timing['seconds'], 'unit': 'operations/s',
        'size': size, **timing,
      }
    )  # fmt: skip
  # What clients side by side do: W1's dense layer, ten examples of each client.
  clients, inputs, outputs = (4, 64, 32) if watch.small else (64, 3136, 2048)
  x, w = _normal((clients, 10, inputs)), _normal((clients, inputs, outputs), seed=1)
  for precision in ('highest', 'default'):
    product = jax.jit(lambda x, w, p=precision: jnp.matmul(x, w, precision=p))
    timing = measuring.timed(functools.partial(product, x, w), calls=5)
    watch.say(
      {
        'what': f'products of {clients} clients, {precision}',
        'value': 2 * x.size * outputs / timing['seconds'], 'unit': 'operations/s',
        'bytes_per_second': 4 * (x.size + w.size) / timing['seconds'], **timing,
      }
    )  # fmt: skip


def _bandwidth(watch: Watch) -> None:
  """Bytes read and written a second."""
  x = _normal((2**20 if watch.small else 2**28,))
  add = jax.jit(lambda x: x + 1)
  timing = measuring.timed(lambda: add(x), calls=5)
  watch.say(
    {
      'what': 'bandwidth', 'value': 2 * x.nbytes / timing['seconds'], 'unit': 'bytes/s',
      **timing,
    }
  )  # fmt: skip


def _loops(watch: Watch) -> None:
  """Seconds of a call, and of a step of a loop whose length the host does not know."""
  x = jnp.zeros(8)
  call = jax.jit(lambda x: x + 1)
  timing = measuring.timed(lambda: call(x))
  watch.say({'what': 'call', 'value': timing['seconds'], 'unit': 's', **timing})
  steps = 1000

  def body(_: Any, x: Any) -> Any:
    return jnp.sin(x)

  def loop_of(body: Callable[..., Any], unroll: int | None) -> Any:
    if unroll is None:
      return jax.jit(lambda x, n: jax.lax.fori_loop(0, n, body, x))
    return jax.jit(lambda x, n: jax.lax.fori_loop(0, steps, body, x, unroll=unroll))

  for name, unroll in (('of unknown length', None), ('of known length', 1)):
    loop = loop_of(body, unroll)
    timing = measuring.timed(functools.partial(loop, x, steps))
    each = timing['seconds'] / steps
    watch.say({'what': f'step of a loop {name}', 'value': each, 'unit': 's', **timing})


def _transfers(watch: Watch) -> None:
  """Bytes a second between the host and the device."""
  device = measuring.chip().devices.flat[0]
  on_device = _normal((2**18 if watch.small else 2**26,))
  sharding = jax.sharding.SingleDeviceSharding(device)
  kinds = [m.kind for m in device.addressable_memories()]
  if 'pinned_host' not in kinds:
    watch.say({'what': 'transfers', 'skipped': f'no pinned memory, but {kinds}'})
    return
  there = sharding.with_memory_kind('pinned_host')
  on_host = jax.block_until_ready(jax.device_put(on_device, there))
  for name, x, to in (
    ('to the host', on_device, there),
    ('from the host', on_host, sharding),
  ):
    timing = measuring.timed(functools.partial(jax.device_put, x, to))
    speed = on_device.nbytes / timing['seconds']
    watch.say({'what': f'{name}, pinned', 'value': speed, 'unit': 'bytes/s', **timing})
