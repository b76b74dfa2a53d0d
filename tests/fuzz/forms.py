"""Kinds of files: how to write, to change and to read them, and what they share."""

import contextlib
import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import fesem_jax as fj
from fesem_jax import data
from tests.fuzz import mutations


class Format(NamedTuple):
  """A kind of file.

  Attributes:
    write: writes sound files into an empty folder.
    change: (random generator, folder) spoils one of them.
    read: reads a folder; raises `UserError`, or asserts that the data are plausible.
  """

  write: Callable
  change: Callable
  read: Callable


def bytes_of(*patterns):
  """Changes the bytes of one of the files of some names."""

  def change(rng, folder):
    found = sorted(p for name in patterns for p in folder.rglob(name) if p.is_file())
    path = found[rng.integers(len(found))]
    path.write_bytes(mutations.of_bytes(rng, path.read_bytes()))

  return change


def one_of(*changes):
  """One of several kinds of change."""
  return lambda rng, folder: changes[rng.integers(len(changes))](rng, folder)


def json_of(pattern):
  """Changes the values of a file of JSON."""

  def change(rng, folder):
    found = sorted(folder.rglob(pattern))
    path = found[rng.integers(len(found))]
    path.write_bytes(mutations.of_json(rng, json.loads(path.read_text())))

  return change


def npz_of(pattern):
  """Changes the arrays of an .npz."""

  def change(rng, folder):
    (path,) = folder.rglob(pattern)
    with np.load(path) as held:
      arrays = dict(held)
    path.write_bytes(mutations.of_npz(rng, arrays))

  return change


def plausible(splits):
  """Asserts that loaded splits are what a run can train on."""
  for split in splits:
    x, y = np.asarray(split.x), np.asarray(split.y)
    sizes = np.asarray(split.sizes())
    assert len(x) == len(y) == sizes.sum()
    assert (sizes >= 0).all()
    assert np.isfinite(x).all()
    assert x.dtype in (np.uint8, np.float32)
    assert np.isfinite(split.scale)
    if split.task != 'regression':
      least = -1 if split.task == 'sequence' else 0
      assert y.min(initial=0) >= least
      assert y.max(initial=0) < split.num_classes
    else:
      assert np.isfinite(y).all()
  assert splits[0].info.names.tolist() == splits[1].info.names.tolist()


def loads(name, **options):
  """Reads a data set of a folder."""
  return lambda folder: plausible(data.load(name, data_dir=folder, **options))


@contextlib.contextmanager
def all_of():
  """Several readers of one folder: raises the first `UserError` when all have run."""
  refused = []

  @contextlib.contextmanager
  def each():
    try:
      yield
    except fj.UserError as e:
      refused.append(e)

  yield each
  if refused:
    raise refused[0]


def lines_of(pattern, separator):
  """Changes the lines and cells of a file of text."""

  def change(rng, folder):
    found = sorted(folder.rglob(pattern))
    path = found[rng.integers(len(found))]
    path.write_bytes(mutations.of_lines(rng, path.read_text(), separator))

  return change
