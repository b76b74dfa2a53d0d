"""Commands that SIGKILL ends at random moments, and that are then repeated."""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.support.commands import ROOT
from tests.support.runs import records

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

SMALL = (
  '--dataset=digits', '--partition=rotated', '--num_clients=8',
  '--examples_per_client=20', '--hidden=8', '--local_epochs=1', '--num_devices=1',
  '--checkpoint_every=1', '--rounds=12', '--report_html=false',
)  # fmt: skip
COMMANDS = {
  'fesem': (
    'run', '--algorithm=fesem', '--num_clusters=2', '--clients_per_round=5',
  ),
  'hypo_cluster': ('run', '--algorithm=hypo_cluster', '--num_clusters=2'),
  'scaffold': ('run', '--algorithm=scaffold', '--clients_per_round=5'),
  'compare': ('compare', '--algorithms=fed_avg,fesem(2)', '--num_seeds=2'),
}  # fmt: skip
KILLS = 4
TIMES = ('seconds', 'timing', 'memory', 'commit', 'seconds_per_round')


@contextlib.contextmanager
def started(name, workdir, cache):
  """A process of a command, and the text file of its messages."""
  module, *arguments = COMMANDS[name]
  command = [sys.executable, '-m', f'experiments.{module}', *arguments, *SMALL]
  environment = os.environ | {
    'JAX_COMPILATION_CACHE_DIR': str(cache), 'JAX_PLATFORMS': 'cpu',
    'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(cache),
  }  # fmt: skip
  with (cache.parent / 'messages.txt').open('w+') as messages:
    process = subprocess.Popen(
      [*command, f'--workdir={workdir}'], env=environment, cwd=cache.parent,
      stdout=messages, stderr=messages, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
      yield process, messages


def finish(name, workdir, cache):
  """Runs a command to its end."""
  with started(name, workdir, cache) as (process, messages):
    code = process.wait(600)
    messages.seek(0)
    assert code == 0, messages.read()


def num_records(workdir):
  """Records of rounds of all runs in a workdir."""
  files = [workdir / 'metrics.jsonl', *workdir.glob('*/seed*/metrics.jsonl')]
  return sum(p.read_bytes().count(b'\n') for p in files if p.exists())


def kill(name, workdir, cache, rng, total):
  """Kills a command shortly after a random round, unless it ends before."""
  done = num_records(workdir)
  target = rng.randint(done + 1, max(done + 1, min(done + 6, total)))
  with started(name, workdir, cache) as (process, messages):
    while process.poll() is None and num_records(workdir) < target:
      time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.2))
    process.send_signal(signal.SIGKILL)
    code = process.wait()
    messages.seek(0)
    assert code in (0, -signal.SIGKILL), messages.read()


def without_times(value):
  """What a file of results holds without times, memory and commit."""
  if isinstance(value, dict):
    return {k: without_times(v) for k, v in value.items() if k not in TIMES}
  return list(map(without_times, value)) if isinstance(value, list) else value


def results(workdir):
  """Path of each file of results -> its content without times, as text."""
  result = {}
  for path in sorted(p for p in workdir.rglob('*') if p.is_file()):
    name = path.relative_to(workdir).as_posix()
    if 'checkpoints' in path.parts:
      continue
    if path.name == 'metrics.jsonl':
      result[name] = repr(records(path.parent))
    elif path.suffix == '.json':
      result[name] = repr(without_times(json.loads(path.read_text())))
    elif path.suffix == '.npz':
      with np.load(path) as arrays:
        result[name] = repr({n: arrays[n].tobytes() for n in sorted(arrays.files)})
    elif path.name == 'clients.csv':
      result[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    else:
      result[name] = 'exists'
  return result


@pytest.mark.parametrize('name', COMMANDS)
def test_a_killed_command_ends_with_the_results_of_an_undisturbed_one(name, tmp_path):
  cache, seed = tmp_path / 'cache', random.randrange(10**6)
  cache.mkdir()
  finish(name, tmp_path / 'undisturbed', cache)
  expected = results(tmp_path / 'undisturbed')
  rng, total = random.Random(seed), num_records(tmp_path / 'undisturbed')
  for _ in range(KILLS):
    kill(name, tmp_path / 'killed', cache, rng, total)
  finish(name, tmp_path / 'killed', cache)
  result = results(tmp_path / 'killed')
  assert sorted(result) == sorted(expected), f'seed {seed}'
  assert [n for n in expected if result[n] != expected[n]] == [], f'seed {seed}'
