"""A damaged file raises, ends soon, and never loads as something else."""

import datetime
import functools
import pickle
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

import fesem_jax as fj
from fesem_jax import data
from fesem_jax.run.results import client_table as client_file
from fesem_jax.run.results import files, saved_models
from tests.support import runs, sources

STATE = {'w': np.arange(12.0, dtype=np.float32), 'n': np.arange(3)}
# Values in place of a word or a number of a text.
ODD = (
  '', '0', '-1', '0.5', '1e999', 'NaN', '"x"', 'null', '[]', '{}', '9' * 400,
  '[' * 5000, 'true', '../../evil', '\0', '1' * 20 + '.5',
)  # fmt: skip


def write_npz(folder):
  more = {'split': np.arange(12) // 9, 'cluster': np.array(['p', 'q', 'p'] * 4)}
  np.savez(folder / 'data.npz', **sources.own_arrays(**more))


def write_leaf(folder):
  sources.write_leaf(folder / 'leaf_femnist', sources.writers())


def write_csv(folder):
  rng, lines = np.random.default_rng(0), ['client,a,b,label']
  for i in range(24):
    lines.append(f'c{i % 3},{rng.normal():.3f},{rng.normal():.3f},{i % 2}')
  (folder / 'data.csv').write_text('\n'.join(lines) + '\n')


def write_idx(folder):
  rng, inner = np.random.default_rng(0), folder / 'mnist'
  for prefix, n in (('train', 12), ('t10k', 8)):
    x, y = rng.integers(0, 256, (n, 28, 28)).astype(np.uint8), np.arange(n) % 10
    for name, array in (('images-idx3', x), ('labels-idx1', y.astype(np.uint8))):
      sources.write_idx(inner / f'{prefix}-{name}-ubyte', array)


@functools.cache
def finished():
  """A workdir of a run that writes all files."""
  folder = Path(tempfile.mkdtemp()) / 'run'
  runs.simulated(workdir=folder, make_portrait=True)
  return folder


def write_run(folder):
  shutil.copytree(finished(), folder, dirs_exist_ok=True)


def read_run(folder):
  run = fj.load_run(folder)
  run.params(client='c1')
  return run.clients.iloc[1].to_dict()


def read_models(folder):
  models = saved_models.read(folder, 2)
  return models.shared, models.choice, models.names, models.examples


def loaded(name, **options):
  """A reader of a data set: what it loads is what a run can train on."""

  def read(folder):
    splits = data.load(name.format(folder), data_dir=folder, **options)
    for split in splits:
      x, y, sizes = (np.asarray(a) for a in (split.x, split.y, split.sizes()))
      assert len(x) == len(y) == sizes.sum()
      assert (sizes >= 0).all()
      assert np.isfinite(x).all()
      assert split.task == 'regression' or y.max(initial=0) < split.num_classes
    names = [split.info.names.tolist() for split in splits]
    assert names[0] == names[1]

  return read


# Name, writer of a small valid file, reader, and the file that is damaged. Files with
# checksums come back as they were, or not at all.
FORMATS = [
  ('npz', write_npz, loaded('npz({}/data.npz)'), 'data.npz'),
  ('csv', write_csv, loaded('table({}/data.csv)'), 'data.csv'),
  ('idx', write_idx, loaded('mnist', num_clients=2), '*ubyte'),
  ('leaf', write_leaf, loaded('femnist'), '*.json'),
  ('config', write_run, read_run, 'config.json'),
  ('summary', write_run, read_run, 'summary.json'),
  ('metrics', write_run, read_run, 'metrics.jsonl'),
  ('clients', write_run, client_file.read, 'clients.csv'),
]
CHECKED = [
  ('portrait', write_run, files.read_portrait, 'clients.npz'),
  ('models', write_run, read_models, 'models.npz'),
]


@functools.cache
def valid(name):
  """A folder with a valid file, and what reading it gives."""
  _, write, read, _ = next(f for f in FORMATS + CHECKED if f[0] == name)
  folder = Path(tempfile.mkdtemp()) / 'valid'
  folder.mkdir()
  write(folder)
  return folder, read(folder)


@st.composite
def damages(draw):
  """A function of the bytes of a file."""
  places = st.floats(0, 1, exclude_max=True)
  kind = draw(st.sampled_from(['cut', 'flip', 'delete', 'insert', 'number', 'word']))
  start, length = draw(places), draw(st.sampled_from([1, 4, 64, 4096]))
  bit, noise = draw(st.integers(0, 7)), draw(st.binary(min_size=1, max_size=64))
  odd = draw(st.sampled_from(ODD))

  def change(raw):
    i = int(start * len(raw))
    match kind:
      case 'cut':
        return raw[:i]
      case 'flip':
        return raw[:i] + bytes([raw[i] ^ 1 << bit]) + raw[i + 1 :]
      case 'delete':
        return raw[:i] + raw[i + length :]
      case 'insert':
        return raw[:i] + noise + raw[i:]
      case 'number':  # As a length or an offset that is far too large.
        return raw[:i] + b'\xff' * min(length, 8) + raw[i + min(length, 8) :]
    words = list(re.finditer(rb'"[^"]*"|[\w.+-]+', raw))
    if not words:
      return raw[:i]
    word = words[int(start * len(words))]
    return raw[: word.start()] + odd.encode() + raw[word.end() :]

  return change


def spoiled(name, pattern, place, damage):
  """A copy of a valid folder with one damaged file; None if the damage does nothing."""
  folder = Path(tempfile.mkdtemp()) / 'copy'
  shutil.copytree(valid(name)[0], folder)
  files = sorted(p for p in folder.rglob(pattern) if p.is_file() and p.stat().st_size)
  path = files[int(place * len(files))]
  raw = path.read_bytes()
  path.write_bytes(damage(raw))
  return None if path.read_bytes() == raw else folder


def arrays_of(value):
  return [np.asarray(x) for x in jax.tree.leaves(value)]


PLACES = st.floats(0, 1, exclude_max=True)
FUZZ = hypothesis.settings(
  max_examples=12,
  deadline=datetime.timedelta(seconds=60),
  suppress_health_check=list(hypothesis.HealthCheck),
  derandomize=True,
  database=None,
)


@pytest.mark.parametrize(
  ('name', 'read', 'pattern'), [(n, r, p) for n, _, r, p in FORMATS]
)
@FUZZ
@hypothesis.given(place=PLACES, damage=damages())
def test_a_damaged_file_raises_or_is_plausible(name, read, pattern, place, damage):
  folder = spoiled(name, pattern, place, damage)
  if folder is None:
    return
  before = set(folder.parent.rglob('*'))
  try:
    read(folder)
  except AssertionError:
    raise
  except Exception:  # Parsers raise all kinds.
    return
  assert set(folder.parent.rglob('*')) <= before  # Nothing is written elsewhere.


@pytest.mark.parametrize(
  ('name', 'read', 'pattern'), [(n, r, p) for n, _, r, p in CHECKED]
)
@FUZZ
@hypothesis.given(place=PLACES, damage=damages())
def test_a_file_with_checksums_loads_as_it_was_or_raises(
  name, read, pattern, place, damage
):
  folder = spoiled(name, pattern, place, damage)
  if folder is None:
    return
  try:
    result = read(folder)
  except Exception:
    return
  for ours, theirs in zip(arrays_of(result), arrays_of(valid(name)[1]), strict=True):
    np.testing.assert_array_equal(ours, theirs)


class Canary:
  """An object whose unpickling fails the test."""

  def __reduce__(self):
    return pytest.fail, ('unpickled',)


@pytest.mark.parametrize(
  ('name', 'file', 'array'),
  [('npz', 'data.npz', 'x'), ('models', 'models.npz', 'names')],
)
def test_pickled_objects_are_refused(name, file, array, tmp_path):
  folder = shutil.copytree(valid(name)[0], tmp_path / 'copy')
  with np.load(folder / file) as archive:
    arrays = dict(archive)
  arrays.pop(array)
  np.savez(folder / file, **arrays)
  header = {'descr': '|O', 'fortran_order': False, 'shape': (1,)}
  with (
    zipfile.ZipFile(folder / file, 'a') as archive,
    archive.open(f'{array}.npy', 'w') as out,
  ):
    np.lib.format.write_array_header_1_0(out, header)
    out.write(pickle.dumps(np.array([Canary()], object)))
  read = next(r for n, _, r, _ in FORMATS + CHECKED if n == name)
  with pytest.raises(fj.UserError, match=re.escape(file)):
    read(folder)
