"""Files that a run goes on from: locks, configurations, checkpoints, all damaged."""

import dataclasses
import errno
import itertools
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fesem_jax.run.workdir
from fesem_jax import algorithms
from fesem_jax.core import sharding
from fesem_jax.run import checkpoint
from fesem_jax.run.checkpoint import Checkpoints
from fesem_jax.run.workdir import locked
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.runs import assert_same_state, records, simulate

CONFIG = {'algorithm': 'fed_avg', 'seed': 0}
LOCAL = helpers.local()
ALGORITHM = algorithms.build('fed_avg', LOCAL)
STATE = {
  'w': np.linspace(0, 1, 120, dtype=np.float32).reshape(8, 15),
  'n': np.arange(3),
}


DATA = helpers.federation([6, 3, 5]), helpers.federation([4, 4, 4], 1)


def go(folder, rounds=3, data=DATA, **options):
  options = {
    'config': CONFIG, 'checkpoint_every': 1, 'progress': False, 'make_portrait': True,
  } | options  # fmt: skip
  return simulate(ALGORITHM, *data, rounds=rounds, workdir=folder, **options)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A finished run of three rounds, with checkpoints of the last two."""
  folder = tmp_path_factory.mktemp('finished')
  go(folder)
  return folder


@pytest.fixture
def workdir(finished, tmp_path):
  """A copy of it to be broken."""
  shutil.copytree(finished, tmp_path / 'run')
  return tmp_path / 'run'


def content(folder):
  return {p: p.read_bytes() for p in sorted(folder.rglob('*')) if p.is_file()}


def restored(folder, like=STATE):
  checkpoints = Checkpoints(folder)
  try:
    return checkpoints.load(checkpoints.latest_round(), jax.tree.map(jnp.asarray, like))
  finally:
    checkpoints.close()


def test_arrays_split_over_devices_are_restored_on_one(tmp_path):
  two, one = (sharding.client_mesh(n) for n in (2, 1))

  def place(mesh):
    return {
      'w': jax.device_put(STATE['w'], jax.NamedSharding(mesh, jax.P(*mesh.axis_names))),
      'n': jnp.asarray(STATE['n']),
    }

  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(1, place(two))
  checkpoints.close()
  state = restored(tmp_path, place(one))
  assert_same_state(state, STATE)
  assert len(state['w'].sharding.device_set) == 1
  with pytest.raises(ValueError, match='shape'):
    restored(tmp_path, {'w': jnp.zeros((16, 15)), 'n': jnp.arange(3)})


def test_two_runs_do_not_share_a_workdir(workdir):
  mine = f'in use by another run, process {os.getpid()}'
  with locked(workdir), pytest.raises(UserError, match=mine):
    go(workdir)
  # As another process of this package would hold it, until it is killed.
  hold = (
    'import fcntl, os, sys, time; f = open(sys.argv[1], "r+");'
    'fcntl.flock(f, fcntl.LOCK_EX); f.truncate(); f.write(str(os.getpid())); f.flush();'
    'print("held", flush=True); time.sleep(600)'
  )
  with subprocess.Popen(
    [sys.executable, '-c', hold, workdir / '.lock'], stdout=subprocess.PIPE
  ) as other:
    assert other.stdout.readline() == b'held\n'
    before = content(workdir)
    with pytest.raises(UserError, match=f'in use by another run, process {other.pid}'):
      go(workdir)
    assert content(workdir) == before
    other.kill()
  assert go(workdir).summary['rounds'] == 3
  with pytest.raises(UserError, match='rounds'):
    go(workdir, rounds=1)
  assert go(workdir).summary['rounds'] == 3  # A run that failed holds nothing.


def test_what_killed_runs_left_is_removed(workdir):
  (workdir / '.summary.json.0123.partial').write_text('{')
  (workdir / 'plots').mkdir()
  (workdir / 'plots/.a.png.0123.partial').touch()
  (workdir / 'checkpoints/4.orbax-checkpoint-tmp').mkdir()
  (workdir / 'checkpoints/4.orbax-checkpoint-tmp/w').write_text('')
  go(workdir)
  assert not list(workdir.rglob('*.partial'))
  assert not list(workdir.rglob('*tmp*'))


class Killed(BaseException):
  """Stands for a signal that cannot be caught."""


@pytest.mark.slow
def test_a_run_killed_before_any_of_its_writes_goes_on(finished, tmp_path, monkeypatch):
  writes = 0
  for n in itertools.count():
    left = itertools.count(n, -1)

    def kill_before(module, name, left=left):
      call = getattr(module, name)

      def counted(*args, **kwargs):
        if next(left) == 0:
          raise Killed
        return call(*args, **kwargs)

      monkeypatch.setattr(module, name, counted)

    folder = tmp_path / str(n)
    kill_before(os, 'replace')
    kill_before(os, 'fdopen')
    kill_before(pathlib.Path, 'rename')
    kill_before(shutil, 'rmtree')
    kill_before(checkpoint.Checkpoints, '_sync')
    kill_before(fesem_jax.run.workdir, 'write_atomically')
    try:
      go(folder)
      break
    except Killed:
      monkeypatch.undo()
    go(folder)
    assert records(folder) == records(finished)
    assert {p.name for p in folder.iterdir()} == {p.name for p in finished.iterdir()}
    writes += 1
  assert writes > 10


@pytest.mark.parametrize('name', ['checkpoints', 'config.json'])
def test_results_that_cannot_go_on_are_not_overwritten(workdir, name):
  path = workdir / name
  shutil.rmtree(path) if path.is_dir() else path.unlink()
  before = content(workdir)
  for resume in (True, False):
    with pytest.raises(UserError, match='workdir'):
      go(workdir, resume=resume)
  assert content(workdir) == before


def test_a_full_disk_keeps_what_was_there(workdir, monkeypatch):
  def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, 'No space left on device')

  before = content(workdir)
  for name in ('orbax.checkpoint.Checkpointer.save', 'os.replace'):
    monkeypatch.setattr(name, full)
    with pytest.raises((UserError, OSError), match='No space left'):
      go(workdir, rounds=4)
    monkeypatch.undo()
  del before[workdir / 'metrics.jsonl']  # It has round 4 now.
  assert content(workdir).items() >= before.items()
  go(workdir, rounds=4)
  assert not list(workdir.rglob('*.partial'))


def test_other_data_under_the_same_flags_is_refused(finished, workdir):
  first, test = DATA
  y = np.asarray(first.y).copy()
  y[3] = (y[3] + 1) % 3  # One label.
  other = dataclasses.replace(first, y=y)
  for data in ((other, test), (first, other)):
    with pytest.raises(UserError, match='data'):
      go(workdir, data=data)
