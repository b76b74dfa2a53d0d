"""Random changes to files: bytes, JSON, tables of text and arrays."""

import io
import json
import pickle
import zipfile

import numpy as np

HUGE = (0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 2**40, 2**63 - 1, 2**64 - 1, 0)
# What names of files and of clients may not lead to.
NAMES = ('../../outside/evil', '/tmp/fesem_fuzz_evil', '..\\evil', 'a\0b', '', '\ud800')


class Canary:
  """An object whose unpickling would be noticed."""

  def __reduce__(self):
    return (print, ('unpickled',))


class Raw(str):
  """Text that stands in JSON as it is."""


def of_bytes(rng, raw):
  """Bytes with one to three changes."""
  raw = bytearray(raw)
  for _ in range(rng.integers(1, 4)):
    n = len(raw)
    a, b = sorted(int(i) for i in rng.integers(0, n + 1, 2))
    b = min(b, a + int(rng.choice([1, 4, 64, 4096])))
    noise = rng.bytes(int(rng.choice([1, 8, 300])))
    match int(rng.integers(0, 11)):
      case 0 | 1 if n:  # Flip a bit, early ones more often: headers are there.
        at = int(n * rng.random() ** 2)
        raw[at] ^= 1 << int(rng.integers(0, 8))
      case 2:
        del raw[a:]
      case 3:
        raw[a:a] = raw[a:b]
      case 4:
        raw[a:a] = noise
      case 5:
        del raw[a:b]
      case 6:
        raw[a:b] = raw[a:b][::-1]
      case 7:  # A number of 4 or 8 bytes, in either order.
        size, order = int(rng.choice([4, 8])), str(rng.choice(['little', 'big']))
        number = int(HUGE[rng.integers(len(HUGE))]) % 2 ** (8 * size)
        at = int(max(0, n - size) * rng.random() ** 2)
        raw[at : at + size] = number.to_bytes(size, order)
      case 8:
        raw[a:b] = bytes(b - a)
      case 9:
        raw += raw[: 2**20]
      case _:
        c = int(rng.integers(0, n + 1))
        raw[c : c + b - a] = raw[a:b]
  return bytes(raw)


def _values(rng, value):
  """Something else in place of a value of JSON."""
  many = [value] * int(rng.choice([0, 2, 50]))
  found = [
    None, True, -1, 0, 3, 0.5, 1e308, 10**25, 2**63, 'x', '', [], {}, [[]], [value],
    {'a': value}, many, Raw('NaN'), Raw('-Infinity'), Raw('1e999'), Raw('9' * 5000),
    Raw('[' * 100_000), Raw('{"a":' * 3000 + '1' + '}' * 3000), 'y' * 100_000, '9' * 30,
    *NAMES,
  ]  # fmt: skip
  return found[rng.integers(len(found))]


def _places(value, path=()):
  yield path
  items = value.items() if isinstance(value, dict) else ()
  if isinstance(value, list):  # Of long lists, the ends and some places inside.
    items = [(i, value[i]) for i in {0, 1, len(value) // 2, len(value) - 1} if
             0 <= i < len(value)]  # fmt: skip
  for name, inner in items:
    yield from _places(inner, (*path, name))


def of_json(rng, value):
  """The text of JSON with one or two changes to its values, keys or text."""
  value = json.loads(json.dumps(value))
  for _ in range(rng.integers(1, 3)):
    places = list(_places(value))
    path = places[rng.integers(len(places))]
    if not path:  # The whole of it, seldom.
      if rng.random() < 0.1:
        value = _values(rng, value)
      continue
    holder = value
    for name in path[:-1]:
      holder = holder[name]
    last, kind = path[-1], rng.integers(0, 6)
    if kind == 0:
      del holder[last]
    elif kind == 1 and isinstance(holder, dict):
      holder[str(_values(rng, last))[:1000]] = holder.pop(last)
    elif kind == 2:
      other = places[rng.integers(len(places))]
      found = value
      for name in other:
        found = found[name] if name in found or isinstance(found, list) else None
        if found is None:
          break
      holder[last] = json.loads(_text(found))
    else:
      holder[last] = _values(rng, holder[last])
      if isinstance(holder[last], str):
        break
  text = _text(value)
  if rng.random() < 0.1:  # A key twice.
    at = text.find('{') + 1
    text = f'{text[:at]}{text[at : text.find(",", at)]},{text[at:]}' if at else text
  return text.encode(errors='surrogatepass')


def _text(value):
  """JSON with `Raw` text as it is."""
  raws = {}

  def marked(x):
    if isinstance(x, Raw):
      raws[name := f'RAW{len(raws)}RAW'] = x
      return name
    if isinstance(x, dict):
      return {k: marked(v) for k, v in x.items()}
    return [marked(v) for v in x] if isinstance(x, list) else x

  text = json.dumps(marked(value))
  for name, raw in raws.items():
    text = text.replace(f'"{name}"', raw)
  return text


def of_lines(rng, text, separator=','):
  """Text of lines and cells with one to three changes."""
  lines = [line.split(separator) for line in text.split('\n')]
  for _ in range(rng.integers(1, 4)):
    a, b = (int(i) for i in rng.integers(0, len(lines), 2))
    kind = rng.integers(0, 8)
    if kind == 0:
      del lines[a]
    elif kind == 1:
      lines.insert(b, list(lines[a]))
    elif kind == 2:
      lines[a], lines[b] = lines[b], lines[a]
    elif kind == 3:
      lines[a] = lines[a][: rng.integers(0, len(lines[a]) + 1)]
    else:
      word = _values(rng, 'z')
      words = [
        '"', '""', 'nan', 'inf', '-1', '1e400', '\r', '\u2028', 'é' * 5, '9' * 5000,
      ]  # fmt: skip
      chosen = words[rng.integers(len(words))] if kind > 5 else str(word)[:200_000]
      cell = int(rng.integers(0, max(1, len(lines[a]))))
      lines[a][cell : cell + 1] = [chosen]
    lines = lines or [[]]
  text = '\n'.join(separator.join(line) for line in lines)
  return text.encode(errors='surrogatepass')


def _of_array(rng, x):
  """Another array in its place."""
  n = len(x) if x.ndim else 1
  kinds = [
    lambda: x[: n // 2] if x.ndim else x.reshape(1),
    lambda: np.concatenate([x, x]) if x.ndim else np.stack([x, x]),
    lambda: x.reshape(-1), lambda: x[..., None],
    lambda: x.ravel()[:1].reshape(()) if x.size else x,
    lambda: np.zeros((0, *x.shape[1:]), x.dtype), lambda: x.astype(str),
    lambda: x.astype('S8'), lambda: np.zeros(x.shape, 'M8[s]'),
    lambda: np.zeros(x.shape, complex),
    lambda: np.zeros(x.shape, [('a', 'f4'), ('b', 'i4')]),
    lambda: np.full(x.shape, np.nan, np.float32),
    lambda: np.full(x.shape, np.inf, np.float64), lambda: np.full(x.shape, 1e300),
    lambda: np.full(x.shape, 2**63 - 1, np.int64),
    lambda: np.full(x.shape, 2**64 - 1, np.uint64), lambda: np.full(x.shape, -1),
    lambda: np.zeros(x.shape, bool), lambda: np.asfortranarray(x),
    lambda: x.astype(x.dtype.newbyteorder()), lambda: np.zeros(x.shape, np.float16),
    lambda: np.zeros((1,) * 30 + x.shape, np.int8),
    lambda: np.full(x.shape, NAMES[rng.integers(len(NAMES) - 1)]),
    lambda: np.full(x.shape, Canary(), object),
  ]  # fmt: skip
  try:
    return kinds[rng.integers(len(kinds))]()
  except (ValueError, TypeError):
    return np.zeros(3)


def _npy(x):
  out = io.BytesIO()
  np.lib.format.write_array(out, x, allow_pickle=True)
  return out.getvalue()


def of_npz(rng, arrays, compress=False):
  """Bytes of an .npz with changed arrays, headers, names or sizes."""
  held = {f'{name}.npy': _npy(x) for name, x in arrays.items()}
  names = list(held)
  name = names[rng.integers(len(names))]
  x = arrays[name.removesuffix('.npy')]
  kind = int(rng.integers(0, 16))
  how = zipfile.ZIP_DEFLATED if compress or rng.random() < 0.3 else zipfile.ZIP_STORED
  if kind < 7:
    held[name] = _npy(_of_array(rng, x))
    if rng.random() < 0.3:
      other = names[rng.integers(len(names))]
      held[other] = _npy(_of_array(rng, arrays[other.removesuffix('.npy')]))
  elif kind == 7:
    del held[name]
  elif kind == 8:
    held[f'{NAMES[rng.integers(5)]}.npy'] = held.pop(name)
  elif kind == 9:
    held['more.npy'] = held[name]
  elif kind == 10:  # A shape that the bytes do not have.
    shape = [(2**40,), (2**62, 4), (-1,), (2**31, 2**31, 2**31), (3,) * 70][
      rng.integers(5)
    ]
    descr = ['<f4', '|u1', '|O', '<U9999999', '|V0'][rng.integers(5)]
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
    if rng.random() < 0.2:  # Python's parser, given deep nesting.
      text = '(' * int(rng.choice([90, 300, 5000])) + text
    head = text.ljust(117).encode() + b'\n'
    magic = b'\x93NUMPY\1\0' + len(head).to_bytes(2, 'little')
    held[name] = magic + head + held[name][128:]
  elif kind == 11:
    held[name] = of_bytes(rng, held[name])
  elif kind == 12:  # A pickle where an array should be.
    held[name] = pickle.dumps(Canary())
  elif kind == 14:
    held[name] = held[names[rng.integers(len(names))]]
  out = io.BytesIO()
  with zipfile.ZipFile(out, 'w', how) as archive:
    for each, content in held.items():
      archive.writestr(each.encode(errors='replace').decode(), content)
      if kind == 15:
        archive.writestr(each, content[::-1])
  raw = out.getvalue()
  if rng.random() < 0.15:  # Sizes in the directory that the members do not have.
    at = raw.rfind(b'PK\1\2')
    number = int(HUGE[rng.integers(3)])
    where = at + int(rng.choice([20, 24, 42]))
    raw = raw[:where] + number.to_bytes(4, 'little') + raw[where + 4 :]
  return raw
