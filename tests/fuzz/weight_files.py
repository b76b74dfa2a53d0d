"""Files of weights: what --init_from and fesem-port read."""

import json

import jax
import msgpack
import numpy as np
from flax import serialization

from fesem_jax import models
from fesem_jax.models import porting, starting
from fesem_jax.run.results import export
from tests.fuzz import mutations
from tests.fuzz.forms import Format, all_of, bytes_of, npz_of, one_of

MODEL = models.build('mlp', (6,), 3, (5,))


def _params():
  return jax.device_get(MODEL.init(jax.random.key(0)))


def _write_weights(suffix):
  def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    layers = {
      f'{a}/{b}': np.asarray(x) for a, p in _params().items() for b, x in p.items()
    }
    if suffix == 'npz':
      np.savez(folder / 'w.npz', **layers)
    else:
      export.write(folder / f'w.{suffix}', _params(), layers, {'from': 'fuzz'})
    state = {
      'a.weight': layers['dense0/kernel'].T,
      'a.bias': layers['dense0/bias'],
      'b.weight': layers['logits/kernel'].T,
      'b.bias': layers['logits/bias'],
    }
    np.savez(folder / 'state.npz', **state)

  return write


def _read_weights(folder):
  (path,) = folder.glob('w.*')
  with all_of() as each:
    with each():
      started = starting.start_from(MODEL, export.read(path), str(path))
      made = jax.device_get(started.init(jax.random.key(0)))
      assert all(np.isfinite(x).all() for x in jax.tree.leaves(made))
    with each():
      ported = porting.from_state_dict(MODEL, export.read(folder / 'state.npz'))
      assert all(np.isfinite(x).all() for x in jax.tree.leaves(ported))


def _change_safetensors(rng, folder):
  """The header: a length, and JSON of types, shapes and places."""
  path = folder / 'w.safetensors'
  raw = path.read_bytes()
  length = int.from_bytes(raw[:8], 'little')
  head = mutations.of_json(rng, json.loads(raw[8 : 8 + length]))
  size = len(head) if rng.random() < 0.8 else int(mutations.HUGE[rng.integers(7)])
  path.write_bytes((size % 2**64).to_bytes(8, 'little') + head + raw[8 + length :])


def _change_msgpack(rng, folder):
  path = folder / 'w.msgpack'
  params = _params()
  found = [
    None, 1, 'x', [1.0], {}, 1j, np.float32(3), b'ab', np.full((6, 5), 1e300),
    np.full((6, 5), np.nan), np.zeros((6, 5), 'S3'), np.zeros((5, 6)),
    np.zeros((6, 5), bool), np.zeros((6, 5), 'M8[s]'),
  ]  # fmt: skip
  layer = params[str(rng.choice(list(params)))]
  match int(rng.integers(0, 6)):
    case 0:
      layer.pop('kernel')
    case 1:
      layer['more'] = layer['kernel']
    case 2:
      raw = msgpack.packb({1: {2: 3}, 'a': {}, 'b.c': 1})
      return path.write_bytes(raw)
    case 3:
      declared = (2**40, 2**40), str(rng.choice(['float32', 'O', 'x', 'V0'])), b''
      array = msgpack.ExtType(1, msgpack.packb(declared))
      return path.write_bytes(msgpack.packb({'dense0': array}))
    case 4:
      chunked = {
        '__msgpack_chunked_array__': ['x', True, {}][rng.integers(3)],
        'shape': {'0': 2**40},
        'chunks': {'0': np.zeros(3)},
      }
      layer['kernel'] = chunked
    case _:
      layer['kernel'] = found[rng.integers(len(found))]
  try:
    path.write_bytes(serialization.msgpack_serialize(params))
  except (TypeError, ValueError):
    path.write_bytes(b'\x93' * 2**16)
  return None


FORMATS = {
  'state_dict npz': Format(
    _write_weights('npz'),
    one_of(npz_of('state.npz'), npz_of('w.npz'), bytes_of('*.npz')),
    _read_weights,
  ),
  'safetensors': Format(
    _write_weights('safetensors'),
    one_of(_change_safetensors, bytes_of('*.safetensors')), _read_weights,
  ),
  'msgpack': Format(
    _write_weights('msgpack'), one_of(_change_msgpack, bytes_of('*.msgpack')),
    _read_weights,
  ),
}  # fmt: skip
