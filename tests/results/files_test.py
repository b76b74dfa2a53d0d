"""Files written whole or not at all, never through links; metrics read back."""

import errno
import json
import os
import secrets

import numpy as np
import pytest

from fesem_jax.run.results.files import MetricsWriter, read_metrics
from fesem_jax.utils import atomic_files
from fesem_jax.utils.errors import UserError

pyplot = pytest.importorskip('matplotlib.pyplot')
plots = pytest.importorskip('fesem_jax.plots')


def write_text(path):
  atomic_files.write_atomically(path, 'new')


def write_arrays(path):
  with atomic_files.replacing(path) as file:
    np.savez(file, a=np.arange(3))


def write_figure(path):
  plots.save(pyplot.figure(), path.with_suffix(''), [path.suffix[1:]])


def write_metrics(path):
  out = MetricsWriter(path.parent)
  out.write({'round': 1})
  out.amend({'deployed': 0})


WRITERS = {
  'text.json': write_text, 'arrays.npz': write_arrays,
  'figure.png': write_figure, 'figure.svg': write_figure,
  'metrics.jsonl': write_metrics,
}  # fmt: skip


@pytest.mark.parametrize('name', WRITERS)
def test_no_file_is_written_through_a_planted_link(name, tmp_path, monkeypatch):
  folder, precious = tmp_path / 'folder', tmp_path / 'precious'
  folder.mkdir()
  precious.write_text('old')
  (folder / name).symlink_to(precious)
  for partial in (f'.partial.{name}', f'.trial.{name}', f'.partial..trial.{name}'):
    (folder / partial).symlink_to(precious)
  WRITERS[name](folder / name)
  assert precious.read_text() == 'old'
  assert not (folder / name).is_symlink()
  assert (folder / name).stat().st_size
  assert not list(folder.glob('.*.partial'))
  # Names are random; even one that was guessed is not followed.
  written = (folder / name).read_bytes()
  monkeypatch.setattr(secrets, 'token_hex', lambda n: 'guessed')
  (folder / f'.{name}.guessed.partial').symlink_to(precious)
  with pytest.raises(UserError, match='File exists'):
    WRITERS[name](folder / name)
  assert precious.read_text() == 'old'
  assert (folder / name).read_bytes() == written


@pytest.mark.parametrize('call', ['fsync', 'replace'])
def test_a_file_that_cannot_be_written_stays_as_it_was(call, tmp_path, monkeypatch):
  write_arrays(tmp_path / 'a.npz')
  before = (tmp_path / 'a.npz').read_bytes()

  def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(os, call, full)
  with pytest.raises(UserError, match=r'a\.npz: cannot be written \(No space left'):
    write_text(tmp_path / 'a.npz')
  monkeypatch.undo()
  assert (tmp_path / 'a.npz').read_bytes() == before
  assert [p.name for p in tmp_path.iterdir()] == ['a.npz']


def lines(*rounds):
  return ''.join(json.dumps({'round': r}) + '\n' for r in rounds)


def test_what_follows_the_checkpoint_does_not_matter(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_text(lines(0, 1, 2, 3, 4))
  out = MetricsWriter(tmp_path, 2)
  assert [r['round'] for r in out.records] == [0, 1, 2]
  assert path.read_text() == lines(0, 1, 2)
  out.write({'round': 3})
  assert path.read_text() == lines(0, 1, 2, 3)


def test_a_last_line_cut_short_is_left_out(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  for cut in range(1, 12):
    path.write_text(lines(1, 2, 3)[:-cut])
    got = [r['round'] for r in read_metrics(path)]
    assert got == [1, 2]


@pytest.mark.parametrize('text', [lines(1) + 'rubbish\n' + lines(2), lines(1)])
def test_damaged_and_missing_records_are_refused(text, tmp_path):
  (tmp_path / 'metrics.jsonl').write_text(text)
  with pytest.raises(UserError, match=r'metrics\.jsonl'):
    MetricsWriter(tmp_path, 9)
