"""Several processes: the same results as one, and what happens when one fails."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fesem_jax.core import sharding
from fesem_jax.utils import processes
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.processes import Group
from tests.support import helpers, methods, process_worker
from tests.support.commands import ROOT


class Workers:
  """Processes of `process_worker` that run methods together."""

  def __init__(self, count, devices, folder, names):
    self.folder = folder
    address = helpers.free_address()
    command = [sys.executable, '-m', 'tests.support.process_worker', address]
    tail = [str(count), str(devices), str(folder), *map(str, names)]
    self._started = [
      subprocess.Popen(
        [*command, str(i), *tail],
        cwd=ROOT,
        # Else each looks for TPUs, and complains where another one does.
        env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
        stdout=(folder / f'out{i}').open('wb'),
        stderr=subprocess.STDOUT,
      )
      for i in range(count)
    ]

  def wait(self):
    for i, process in enumerate(self._started):
      code = process.wait(timeout=900)
      lines = (self.folder / f'out{i}').read_text().splitlines()
      printed = [line for line in lines if not line.startswith('[Gloo]')]
      assert (code, printed) == (0, [])

  def __enter__(self):
    return self

  def __exit__(self, *error):
    for process in self._started:
      process.kill()
      process.wait()

  def outcome(self, name, process_id):
    path = self.folder / f'{name}.{process_id}'
    with np.load(f'{path}.npz') as arrays:
      return json.loads(pathlib.Path(f'{path}.json').read_text()), dict(arrays)


def assert_close(result, expected, path=''):
  """Compares nested records, numbers up to the rounding of sums over devices."""
  if isinstance(expected, dict):
    assert result.keys() == expected.keys(), path
    for name in expected.keys() - {'seconds'}:
      assert_close(result[name], expected[name], f'{path}/{name}')
  elif isinstance(expected, list):
    assert len(result) == len(expected), path
    for i, (a, b) in enumerate(zip(result, expected, strict=True)):
      assert_close(a, b, f'{path}/{i}')
  elif isinstance(expected, float):
    assert result == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True), path
  else:
    assert result == expected, path


def assert_same_arrays(result, expected):
  assert result.keys() == expected.keys()
  for name, value in expected.items():
    if value.dtype.kind == 'f':
      np.testing.assert_allclose(result[name], value, rtol=1e-4, atol=1e-5)
    else:
      np.testing.assert_array_equal(result[name], value)


def assert_same_summary(result, expected):
  assert result['device'] == expected['device'] | {'processes': 2}
  of_machine = {'timing', 'memory', 'device'}
  assert_close(*({n: s[n] for n in s.keys() - of_machine} for s in (result, expected)))


NAMES = [name for name, _ in methods.METHODS]
STREAMED = [options.get('client_state') for _, options in methods.METHODS].index(
  'streamed'
)
# Whole runs: centers and a stack, and decisions on the host.
WHOLE = [NAMES.index(name) for name in ('fesem', 'fed_cluster')]
EVERY = [
  i
  for i in range(len(NAMES))
  if i == STREAMED or (i in methods.ONE_OF_EACH_SHAPE and i not in WHOLE)
]
# By day: with four of six clients in a round, and what each of them keeps.
SHARDED = f'sharded{NAMES.index("scaffold")}'


@pytest.fixture(scope='module')
def pair(tmp_path_factory, request):
  """Two processes, a device each, that run methods while others are tested."""
  folder = tmp_path_factory.mktemp('pair')
  names = [SHARDED]
  if any(item.get_closest_marker('nightly') for item in request.session.items):
    # They continue a run that one process has begun.
    process_worker.whole_run(WHOLE[0], 2, folder / f'run{WHOLE[0]}', rounds=2)
    names += [*(f'run{i}' for i in WHOLE), *EVERY]
  with Workers(2, 2, folder, names) as workers:
    yield workers


@pytest.fixture(scope='module')
def done(pair):
  """The same, done."""
  pair.wait()
  return pair


@pytest.mark.nightly
@pytest.mark.parametrize('index', EVERY, ids=[methods.IDS[i] for i in EVERY])
def test_rounds_of_two_processes_are_those_of_one(done, index):
  expected = process_worker.some_rounds(index, 2)
  for process_id in (0, 1):
    assert_same_arrays(done.outcome(index, process_id)[1], expected)


@pytest.mark.nightly
@pytest.mark.parametrize('index', WHOLE, ids=[NAMES[i] for i in WHOLE])
def test_a_run_of_two_processes_is_that_of_one_which_can_continue_it(
  done, index, tmp_path
):
  result = process_worker.whole_run(index, 2, tmp_path)
  expected = process_worker.arrays_of(result)
  for process_id in (0, 1):
    (history, summary), arrays = done.outcome(f'run{index}', process_id)
    assert_close(history, result.history)
    assert_same_summary(summary, result.summary)
    assert_same_arrays(arrays, expected)
  folder = done.folder / f'run{index}'
  assert names_of(folder) == names_of(tmp_path)
  resumed, expected = (
    process_worker.whole_run(index, 2, f, rounds=4) for f in (folder, tmp_path)
  )
  assert_close(resumed.history, expected.history)
  assert_same_arrays(*map(process_worker.arrays_of, (resumed, expected)))


@pytest.mark.nightly
def test_processes_of_split_data_are_one_process(done, tmp_path):
  index = int(SHARDED.removeprefix('sharded'))
  assert process_worker.cohort_size(index) == 4
  result = process_worker.sharded_run(index, 2, tmp_path)
  for process_id in (0, 1):
    (history, summary), arrays = done.outcome(SHARDED, process_id)
    assert_close(history, result.history)
    assert_same_summary(summary, result.summary)
    assert_same_arrays(arrays, process_worker.arrays_of(result))
  configs = [
    json.loads((f / 'config.json').read_text())
    for f in (tmp_path, done.folder / SHARDED)
  ]
  assert configs[0] == configs[1]


def names_of(folder):
  """Files that two equal runs have alike; Orbax's differ by the processes."""
  return {path.relative_to(folder) for path in folder.glob('*')} | {
    path.relative_to(folder) for path in folder.glob('checkpoints/*/*')
  }


@pytest.mark.nightly
def test_four_processes_give_what_one_gives(tmp_path):
  indices = [NAMES.index('fed_per')]  # A sum of bodies, and a stack of heads.
  with Workers(4, 4, tmp_path, indices) as workers:
    workers.wait()
  for index in indices:
    # Sums over four devices round otherwise than those over two.
    expected = process_worker.some_rounds(index, 2)
    for process_id in range(4):
      assert_same_arrays(workers.outcome(index, process_id)[1], expected)


@pytest.mark.parametrize('group', [Group('', 1, 2), Group('host', 0, 2)])
def test_refused(group):
  with pytest.raises(UserError, match=r'^coordinator_address: .*HOST:PORT'):
    processes.initialize(group)


@pytest.mark.parametrize('group', [Group(), Group('', -1, 1), Group('host:1234', 0, 1)])
def test_a_single_process_connects_to_nothing(group):
  processes.initialize(group)
  assert processes.count() == 1
  assert processes.is_first()
  assert processes.from_first(lambda: 3) == 3
  assert processes.any_of(True)
  assert not processes.any_of(False)
  tree = {'a': sharding.replicate(np.arange(3), sharding.client_mesh(2)), 'b': None}
  result = processes.on_host(tree)
  assert isinstance(result['a'], np.ndarray)
  np.testing.assert_array_equal(result['a'], np.arange(3))


def launched(workdir, *arguments):
  """The two processes of a run."""
  command = [sys.executable, '-m', 'experiments.run', '--num_processes=2']
  command += [f'--coordinator_address={helpers.free_address()}', '--num_devices=2']
  command += ['--algorithm=fed_avg', '--num_clients=8', '--eval_every=0', *arguments]
  command += ['--checkpoint_every=5', f'--workdir={workdir}']
  pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
  pipes |= {'env': {**os.environ, 'JAX_PLATFORMS': 'cpu'}}
  return [
    subprocess.Popen([*command, f'--process_id={i}'], cwd=ROOT, text=True, **pipes)
    for i in range(2)
  ]


def rounds_done(workdir):
  path = workdir / 'metrics.jsonl'
  return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for_round(run, workdir, number):
  while rounds_done(workdir) < number:
    assert run.poll() is None, run.communicate()
    time.sleep(0.02)


@pytest.mark.nightly
def test_runs_that_are_interrupted_refused_or_killed_end_with_a_sentence(tmp_path):
  workdir = tmp_path / 'run'
  first, second = launched(workdir, '--rounds=1000000')
  wait_for_round(first, workdir, 6)
  second.send_signal(signal.SIGTERM)
  errors = [process.communicate(timeout=120)[1] for process in (first, second)]
  stopped = re.search(r'Stopped after round (\d+) of 1000000; saved', errors[0])
  assert (first.returncode, second.returncode) == (130, 130)
  stopped = int(stopped[1])
  assert (workdir / 'checkpoints' / str(stopped)).is_dir()

  first, second = launched(workdir, '--rounds=1000000', '--learning_rate=0.5')
  errors = [process.communicate(timeout=120)[1] for process in (first, second)]
  assert (first.returncode, second.returncode) == (1, 75)
  assert ''.join(errors).count('error:') == 1
  assert 'holds another run: learning_rate' in errors[0]

  first, second = launched(workdir, '--rounds=1000000')
  wait_for_round(first, workdir, stopped + 6)
  second.kill()
  _, error = first.communicate(timeout=120)
  assert first.returncode == 75
  assert 'Another process of this run has ended' in error

  saved = max(int(p.name) for p in (workdir / 'checkpoints').glob('[0-9]*'))
  assert saved > stopped
  command = [sys.executable, '-m', 'experiments.run', '--num_devices=1']
  command += ['--algorithm=fed_avg', '--num_clients=8', '--eval_every=0']
  command += [f'--rounds={saved + 2}', f'--workdir={workdir}']
  subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
  assert json.loads((workdir / 'summary.json').read_text())['rounds'] == saved + 2
