"""Files that a run goes on from: locks, configurations, checkpoints, all damaged."""

import errno
import fcntl
import itertools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest

import fesem_jax.run.workdir
from fesem_jax import algorithms
from fesem_jax.core import sharding
from fesem_jax.run import checkpoint
from fesem_jax.run.checkpoint import Checkpoints
from fesem_jax.run.results.saved_run import load_run
from fesem_jax.run.workdir import locked
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.runs import PROGRAMS, assert_same_state, records, simulate

CONFIG = {'algorithm': 'fed_avg', 'seed': 0}
LOCAL = helpers.local()
ALGORITHM = algorithms.build('fed_avg', LOCAL)
STATE = {
  'w': np.linspace(0, 1, 120, dtype=np.float32).reshape(8, 15),
  'n': np.arange(3),
}
ZEROS = jax.tree.map(np.zeros_like, STATE)


def go(folder, rounds=3, **options):
  data = helpers.federation([6, 3, 5]), helpers.federation([4, 4, 4], 1)
  options = {
    'config': CONFIG, 'checkpoint_every': 1, 'progress': False, 'make_portrait': True,
  } | options  # fmt: skip
  return simulate(
    ALGORITHM, *data, rounds=rounds, workdir=folder, programs=PROGRAMS, **options
  )


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


def files_of(folder):
  return [p for p in sorted(folder.rglob('*')) if p.is_file() and p.stat().st_size]


def largest_of(folder):
  return max(files_of(folder), key=lambda p: p.stat().st_size)


def flip(path, bit):
  data = bytearray(path.read_bytes())
  data[bit // 8] ^= 1 << bit % 8
  path.write_bytes(data)


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """Two checkpoints of small arrays, of rounds 1 and 2; round 1's are zeros."""
  folder = tmp_path_factory.mktemp('saved')
  checkpoints = Checkpoints(folder, CONFIG)
  checkpoints.save(1, jax.tree.map(jnp.asarray, ZEROS))
  checkpoints.save(2, jax.tree.map(jnp.asarray, STATE))
  checkpoints.close()
  return folder


def restored(folder, like=STATE):
  checkpoints = Checkpoints(folder, CONFIG)
  try:
    return checkpoints.restore(jax.tree.map(jnp.asarray, like))
  finally:
    checkpoints.close()


REFUSED = (
  r'Checkpoint .*checkpoints/2 is damaged \(.*\); delete it and run the same '
  'command again, which goes on from round 1'
)


def test_no_flipped_bit_gives_other_numbers(saved, tmp_path, capfd):
  shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
  newest = tmp_path / 'checkpoints' / '2'
  rng, files = random.Random(0), files_of(newest)
  for path in [*files, *rng.choices(files, k=40 - len(files))]:
    good = path.read_bytes()
    flip(path, rng.randrange(8 * len(good)))
    with pytest.raises(UserError, match=REFUSED):
      restored(tmp_path)
    path.write_bytes(good)
  # One that would name another configuration.
  note = newest / 'note.json'
  flip(note, 8 * (note.read_bytes().index(b'"seed": 0') + len('"seed": ')))
  assert b'"seed": 1' in note.read_bytes()
  with pytest.raises(UserError, match=REFUSED):
    restored(tmp_path)
  assert 'Traceback' not in capfd.readouterr().err


def test_no_file_missing_or_cut_short_gives_other_numbers(saved, tmp_path):
  for i, path in enumerate(files_of(saved / 'checkpoints' / '2')):
    folder = tmp_path / str(i)
    shutil.copytree(saved, folder)
    broken = folder / path.relative_to(saved)
    good = broken.read_bytes()
    for content in (None, good[: len(good) // 2], b''):
      broken.unlink() if content is None else broken.write_bytes(content)
      with pytest.raises(UserError, match=REFUSED) as caught:
        restored(folder)
      assert broken.relative_to(folder / 'checkpoints/2').as_posix() in str(
        caught.value
      )
  shutil.rmtree(folder / 'checkpoints/2')  # As the sentence says.
  state, rounds_done = restored(folder)
  assert rounds_done == 1
  assert_same_state(state, ZEROS)


def test_a_checkpoint_of_another_round_is_not_taken_for_this_one(saved, tmp_path):
  shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
  (tmp_path / 'checkpoints/2').rename(tmp_path / 'checkpoints/5')
  with pytest.raises(UserError, match=r'5 is damaged \(it was saved as round 2\)'):
    restored(tmp_path)


def test_the_only_checkpoint_has_no_other_remedy_than_a_copy(saved, tmp_path):
  shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
  shutil.rmtree(tmp_path / 'checkpoints/2')
  flip(largest_of(tmp_path / 'checkpoints/1/state'), 800)
  before = content(tmp_path)
  with pytest.raises(UserError, match=r'not what was saved\); put back a valid copy'):
    restored(tmp_path)
  assert content(tmp_path) == before


def test_layers_may_have_any_names(tmp_path):
  (tmp_path / 'metrics.jsonl').touch()
  names = ('a/b', 'a_b', '../c', 'd' * 300)
  state = {name: jnp.full(2, i) for i, name in enumerate(names)}
  Checkpoints(tmp_path, {}).save(1, state)
  restored, _ = Checkpoints(tmp_path, {}).restore(state)
  assert_same_state(restored, state)


def test_older_checkpoints_of_one_database_are_restored(tmp_path, monkeypatch):
  (tmp_path / 'metrics.jsonl').touch()
  older = Checkpoints(tmp_path, {})
  handler = orbax.checkpoint.StandardCheckpointHandler()
  older._checkpointer = orbax.checkpoint.Checkpointer(handler)
  whole = orbax.checkpoint.args.StandardSave(STATE)
  monkeypatch.setattr(orbax.checkpoint.args, 'PyTreeSave', lambda _: whole)
  older.save(1, STATE)
  monkeypatch.undo()
  assert (tmp_path / 'checkpoints/1/state/manifest.ocdbt').exists()
  restored, _ = Checkpoints(tmp_path, {}).restore(STATE)
  assert_same_state(restored, STATE)


def test_an_array_that_each_device_holds_is_written_whole(tmp_path):
  held = sharding.replicate(STATE, sharding.client_mesh(2))
  checkpoints = Checkpoints(tmp_path, CONFIG)
  checkpoints.save(1, held)
  folder = tmp_path / 'checkpoints/1/state'
  chunks = [p.name for p in folder.glob('00000*/*') if p.name != '.zarray']
  assert sorted(chunks) == ['0', '0.0']
  assert_same_state(checkpoints.load(1, held), held)
  checkpoints.close()


def test_arrays_split_over_devices_are_restored_on_one(tmp_path):
  two, one = (sharding.client_mesh(n) for n in (2, 1))

  def place(mesh):
    return {
      'w': jax.device_put(STATE['w'], jax.NamedSharding(mesh, jax.P(*mesh.axis_names))),
      'n': jnp.asarray(STATE['n']),
    }

  checkpoints = Checkpoints(tmp_path, CONFIG)
  checkpoints.save(1, place(two))
  checkpoints.close()
  state, _ = restored(tmp_path, place(one))
  assert_same_state(state, STATE)
  assert len(state['w'].sharding.device_set) == 1
  with pytest.raises(UserError, match=r'other shapes.*the number of devices changed'):
    restored(tmp_path, {'w': jnp.zeros((16, 15)), 'n': jnp.arange(3)})


def test_a_run_with_a_damaged_newest_checkpoint_goes_on_without_it(finished, workdir):
  largest = largest_of(workdir / 'checkpoints/3/state')
  flip(largest, 4 * largest.stat().st_size)
  before = content(workdir)
  with pytest.raises(UserError, match='delete it and run the same command'):
    go(workdir)
  assert content(workdir) == before
  shutil.rmtree(workdir / 'checkpoints/3')
  assert_same_state(go(workdir).state, go(finished).state)
  assert records(workdir) == records(finished)


def test_two_runs_do_not_share_a_workdir(workdir):
  mine = f'in use by another run, process {os.getpid()};'
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
    with pytest.raises(UserError, match=f'in use by another run, process {other.pid};'):
      go(workdir)
    assert content(workdir) == before
    other.kill()
  assert go(workdir).summary['rounds'] == 3
  with pytest.raises(UserError, match='`rounds=1`'):
    go(workdir, rounds=1)
  assert go(workdir).summary['rounds'] == 3  # A run that failed holds nothing.


def test_a_file_system_without_locks_is_warned_of(workdir, monkeypatch, caplog):
  def none(*args):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', none)
  left_over = workdir / '.summary.json.0123.partial'  # Perhaps another run's.
  left_over.write_text('')
  assert go(workdir).summary['rounds'] == 3
  (warning,) = caplog.messages
  assert 'cannot be locked (No locks available)' in warning
  assert left_over.exists()


def test_a_finished_run_is_read_from_a_read_only_disk(finished, workdir, monkeypatch):
  open_ = os.open

  def read_only(path, flags, *args, **kwargs):
    if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
      raise OSError(errno.EROFS, 'Read-only file system')
    return open_(path, flags, *args, **kwargs)

  before = content(workdir)
  monkeypatch.setattr(os, 'open', read_only)
  assert go(workdir).summary == json.loads((finished / 'summary.json').read_text())
  with pytest.raises(UserError, match=r'Cannot write .*Read-only file system'):
    go(workdir, rounds=4)
  (workdir / '.lock').unlink()
  assert go(workdir).summary['rounds'] == 3
  del before[workdir / '.lock']
  assert content(workdir) == before


def test_what_killed_runs_left_is_removed(workdir):
  (workdir / '.summary.json.0123.partial').write_text('{')
  for name in ('plots', 'history'):
    (workdir / name).mkdir()
    (workdir / name / '.a.png.0123.partial').touch()
  (workdir / 'checkpoints/.4.0123.partial').mkdir()
  (workdir / 'checkpoints/.4.0123.partial/state').write_text('')
  go(workdir)
  assert not list(workdir.rglob('*.partial'))


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
    kill_before(checkpoint, 'write_atomically')
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


def test_a_deleted_configuration_is_known_from_the_checkpoint(finished, workdir):
  config = (workdir / 'config.json').read_text()
  (workdir / 'config.json').unlink()
  before = content(workdir)
  other = CONFIG | {'algorithm': 'fesem'}
  with pytest.raises(UserError, match=r'`algorithm` \(there: fed_avg, now: fesem\)'):
    go(workdir, config=other)
  with pytest.raises(UserError, match='`resume` is off'):
    go(workdir, resume=False)
  assert content(workdir) == before
  go(workdir)
  assert (workdir / 'config.json').read_text() == config
  # A configuration that does not belong to the checkpoints beside it.
  (workdir / 'config.json').write_text(json.dumps(json.loads(config) | other))
  with pytest.raises(UserError, match=r'`algorithm` \(there: fed_avg, now: fesem\)'):
    go(workdir, config=other)
  assert records(workdir) == records(finished)


@pytest.mark.parametrize('become', ['missing', 'file', 'empty'])
def test_without_checkpoints_nothing_is_overwritten(workdir, become):
  shutil.rmtree(workdir / 'checkpoints')
  if become == 'file':
    (workdir / 'checkpoints').write_text('')
  if become == 'empty':
    (workdir / 'checkpoints').mkdir()
  before = content(workdir)
  with pytest.raises(UserError, match=r'holds .*metrics.jsonl.* but no checkpoint'):
    go(workdir)
  assert content(workdir) == before
  (workdir / 'config.json').unlink()
  with pytest.raises(UserError, match=r'but neither config.json nor a checkpoint'):
    go(workdir)
  if become != 'empty':  # Or it was killed before its first checkpoint.
    for name in ('summary.json', 'clients.csv', 'clients.npz', 'models.npz'):
      (workdir / name).unlink()
    with pytest.raises(UserError, match=r'holds metrics.jsonl of a run but neither'):
      go(workdir)


@pytest.mark.parametrize('name', ['summary.json', 'clients.npz'])
@pytest.mark.parametrize('broken', [b'', b'[1]', b'\xff{}', b'{}', 'half', 'dir'])
def test_a_damaged_result_is_refused_and_made_anew_once_it_is_deleted(
  finished, workdir, name, broken
):
  path = workdir / name
  half = path.read_bytes()[: path.stat().st_size // 2]
  path.unlink()
  if broken == 'dir':
    path.mkdir()
  else:
    path.write_bytes(half if broken == 'half' else broken)
  with pytest.raises(UserError, match=rf'{name} is damaged .*delete it and run the sa'):
    go(workdir)
  path.rmdir() if broken == 'dir' else path.unlink()
  again = go(workdir)
  good = json.loads((finished / 'summary.json').read_text())
  summary = json.loads((workdir / 'summary.json').read_text())
  assert summary | {'timing': 0, 'memory': 0} == good | {'timing': 0, 'memory': 0}
  with np.load(workdir / 'clients.npz') as a, np.load(finished / 'clients.npz') as b:
    assert_same_state(dict(a), dict(b))
  assert again.summary == summary


def test_a_deleted_portrait_is_drawn_again(finished, workdir):
  (workdir / 'clients.npz').unlink()
  assert sorted(go(workdir).portrait['names']) == ['c0', 'c1', 'c2']
  assert (workdir / 'clients.npz').exists()


def replaced(path, broken):
  """The file with other bytes, or as a folder."""
  path.unlink()
  if broken == 'dir':
    path.mkdir()
  else:
    path.write_bytes(broken)
  return path


@pytest.mark.parametrize('broken', [b'', b'null', b'[]', b'\xff', b'[' * 10**5, 'dir'])
def test_a_damaged_configuration_is_one_sentence(workdir, broken):
  path = replaced(workdir / 'config.json', broken)
  with pytest.raises(UserError, match=r'config.json is damaged \(.*delete it and run'):
    go(workdir)
  if broken != 'dir':
    path.unlink()
    assert go(workdir).summary['rounds'] == 3


@pytest.mark.parametrize('broken', [b'5', b'', b'\x00\xff\n', b'null\n', 'dir'])
def test_damaged_metrics_are_one_sentence(workdir, broken):
  replaced(workdir / 'metrics.jsonl', broken)
  with pytest.raises(
    UserError, match=r'metrics.jsonl (is damaged: line 1|cannot be re|does not reach)'
  ):
    go(workdir)


@pytest.mark.parametrize('place', [1, -1])
def test_a_changed_record_is_found_by_the_checkpoint(finished, workdir, place):
  path, sound = workdir / 'metrics.jsonl', (finished / 'metrics.jsonl').read_text()
  lines = records(workdir)
  lines[place]['train_loss'] += 1e-7
  path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
  with pytest.raises(UserError, match='is damaged: it is not what was saved with'):
    go(workdir)
  with pytest.raises(UserError, match='have different figures'):
    load_run(workdir)
  path.write_text(sound.replace('}\n', ', "more": 1}\n').replace(', "more": 1', '', 2))
  assert go(workdir).history[-1]['more'] == 1  # As when it is evaluated later.


def test_checkpoints_without_a_note_on_records_are_read(finished, workdir):
  """As older versions wrote them."""
  for path in workdir.glob('checkpoints/*/note.json'):
    note = json.loads(path.read_bytes())
    del note['records'], note['digest']
    path.write_text(json.dumps(note | {'digest': checkpoint._digest_of_note(note)}))
  go(workdir, rounds=4)
  assert records(workdir)[:3] == records(finished)


def test_a_configuration_that_only_its_file_contradicts_is_damaged(workdir):
  path = workdir / 'config.json'
  sound = path.read_text()
  path.write_text(sound.replace('fed_avg', 'fed_avh'))
  with pytest.raises(UserError, match='another configuration'):
    go(workdir, config=CONFIG | {'seed': 1})
  with pytest.raises(UserError, match=r'config\.json is damaged .*delete it and run'):
    go(workdir)
  path.unlink()
  assert go(workdir).summary['rounds'] == 3
  assert path.read_text() == sound


def test_a_summary_that_is_not_what_was_written_is_refused(workdir):
  path = workdir / 'summary.json'
  sound = json.loads(path.read_text())
  path.write_text(path.read_text().replace('"label_skew": ', '"label_skew": 1'))
  assert json.loads(path.read_text())['label_skew'] != sound['label_skew']
  for read in (go, load_run):
    with pytest.raises(UserError, match=r'it is not what was written\); delete it'):
      read(workdir)
  (workdir / '.summary.sha256').unlink()  # As of an older version.
  path.write_text(json.dumps(sound | {'notes': ['of mine']}))
  assert go(workdir).summary['notes'] == ['of mine']
  worse = sound['deployed'] | {'micro_accuracy': 1.5}
  path.write_text(json.dumps(sound | {'deployed': worse}))
  with pytest.raises(UserError, match='it says other than metrics'):
    go(workdir)


def test_checkpoints_of_older_versions_are_refused(workdir):
  newest = workdir / 'checkpoints/3'
  (newest / 'note.json').unlink()
  (newest / 'state').rename(newest / 'default')
  before = content(workdir)
  with pytest.raises(UserError, match=r'checkpoints/3 was saved by an older version'):
    go(workdir)
  assert content(workdir) == before


def test_lowering_rounds_to_what_is_done_evaluates_there(tmp_path):
  go(tmp_path / 'run', rounds=4, eval_every=0, checkpoint_every=2)
  shutil.rmtree(tmp_path / 'run/checkpoints/4')
  again = go(tmp_path / 'run', rounds=2, eval_every=0, checkpoint_every=2)
  whole = go(tmp_path / 'whole', rounds=2, eval_every=0)
  assert again.summary['rounds'] == 2
  assert again.summary['deployed'] == whole.summary['deployed']


def test_a_workdir_of_another_configuration_is_refused(finished, workdir):
  before = content(workdir)
  with pytest.raises(UserError, match=r'`seed` \(there: 0, now: 1\)'):
    go(workdir, config=CONFIG | {'seed': 1})
  with pytest.raises(UserError, match=r'`new` \(there: absent, now: 0.0\)'):
    go(workdir, config=CONFIG | {'new': 0.0})
  with pytest.raises(UserError, match='`resume` is off'):
    go(workdir, resume=False)
  with pytest.raises(UserError, match='holds 3 rounds, more than `rounds=2`'):
    go(workdir, rounds=2)
  assert content(workdir) == before
  go(workdir, rounds=4)
  assert records(workdir)[:3] == records(finished)


def test_an_unwritable_workdir_is_named(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match=r'Cannot write to `workdir=.*file/run`'):
    go(tmp_path / 'file' / 'run')


def test_a_full_disk_keeps_what_was_there(workdir, monkeypatch):
  def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, 'No space left on device')

  before = content(workdir)
  monkeypatch.setattr('orbax.checkpoint.Checkpointer.save', full)
  with pytest.raises(UserError, match=r'Cannot save a checkpoint.*No space left'):
    go(workdir, rounds=4)
  monkeypatch.undo()
  monkeypatch.setattr(os, 'replace', full)
  with pytest.raises(UserError, match=r'Cannot write .*No space.*before is unchanged'):
    go(workdir, rounds=4)
  monkeypatch.undo()
  del before[workdir / 'metrics.jsonl']  # It has round 4 now.
  assert content(workdir).items() >= before.items()
  assert not list(workdir.rglob('*.partial'))
  go(workdir, rounds=4)


def test_other_data_under_the_same_flags_is_refused(tmp_path):
  local = helpers.local()
  algorithm = algorithms.build('fed_avg', local)
  options = {
    'rounds': 1,
    'make_portrait': False,
    'progress': False,
    'config': {'seed': 0},
  }
  first = helpers.federation([6, 5, 7])
  simulate(algorithm, first, first, workdir=tmp_path, **options)
  y = np.asarray(first.y).copy()
  y[3] = (y[3] + 1) % 3  # One label.
  other = first.__class__(**{**vars(first), 'y': y})
  for train, test in ((other, first), (first, other)):
    with pytest.raises(UserError, match=r'another configuration: the data \(its ex'):
      simulate(algorithm, train, test, workdir=tmp_path, **options)
  simulate(algorithm, first, first, workdir=tmp_path, **options)
