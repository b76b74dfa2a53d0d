"""Parts of a command as jobs of Slurm or processes of this machine, by submitit."""

import collections
import dataclasses
import hashlib
import importlib.util
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import jax
from absl import flags, logging

from fesem_jax.core import sharding
from fesem_jax.data.expressions import split_call, value
from fesem_jax.run.results.files import read_object
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.interrupts import SIGNALS
from fesem_jax.utils.ranges import Range

from . import flags as experiment_flags
from . import start
from .options import OneOf

BOOK = 'jobs/jobs.json'  # In the workdir: the job of each part.
_MOST_TRIES = 3  # Submissions of a job that dies.
# A job that is gone without a result for so long has died: network disks lag.
_LAG_SECONDS = 15.0
_POLL_SECONDS = 3.0


@dataclasses.dataclass(frozen=True)
class Launch:
  """Jobs.

  Attributes:
    launcher: Where runs happen: jobs of Slurm, processes, or this process.
    workers: Jobs at once; 0: all (slurm), or one per core (processes).
    wait: Wait for all jobs; without, the same command later collects.
    slurm: Options of sbatch, e.g. partition=gpu,gpus_per_node=1,time=60.
  """

  launcher: Annotated[str, OneOf(('', 'processes', 'slurm'))] = ''
  workers: Annotated[int, Range(0, 10_000)] = 0
  wait: bool = True
  slurm: str = ''


@dataclasses.dataclass
class Task:
  """Parts of a command, by name, that one job carries out.

  After SIGTERM (preemption) or SIGUSR2 (time limit) it saves and ends. A job of Slurm
  then returns to the queue, but not if it was canceled.
  """

  binary: str
  arguments: list[str]
  parts: dict[str, Any]
  gpu: str = ''

  def __call__(self) -> dict[str, Any]:
    """Carries out the parts; `carry_out` of the binary returns their values."""
    results = dict[str, Any]()
    for number in SIGNALS:
      signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGTERM))
    if self.gpu:
      os.environ['CUDA_VISIBLE_DEVICES'] = self.gpu

    def main(_: list[str]) -> None:
      module = importlib.import_module(f'{__package__}.{self.binary}')
      module.define_flags()
      start.parse_flags([self.binary, *self.arguments, '--launcher='])
      for name, part in self.parts.items():
        results[name] = module.carry_out(part)

    try:
      start.main_with_clear_errors(main)([])
    except SystemExit as e:
      if e.code == start.INTERRUPTED and os.environ['SUBMITIT_EXECUTOR'] == 'slurm':
        _requeue(os.environ['SLURM_JOB_ID'])
      raise
    return results


def _requeue(job: str) -> None:
  """Returns this job to the queue; a canceled one is no longer running."""
  command = ['squeue', '--noheader', '--format=%T', f'--jobs={job}']
  if b'RUNNING' in subprocess.run(command, capture_output=True).stdout:
    for number in (*SIGNALS, signal.SIGUSR2):
      signal.signal(number, signal.SIG_IGN)
    subprocess.run(['scontrol', 'requeue', job])


def setup_devices() -> None:
  """Sets up JAX; a process that launches jobs leaves accelerators to them."""
  if flags.FLAGS.launcher:
    jax.config.update('jax_platforms', 'cpu')
  sharding.setup_devices(flags.FLAGS.num_devices, identical=flags.FLAGS.identical)


def launch(
  binary: str, parts: Mapping[str, Any], workdir: pathlib.Path
) -> dict[str, Any]:
  """Carries out parts of this command as jobs, by --launcher.

  Args:
    binary: module of this package with `define_flags` and `carry_out(part)`.
    parts: what a job passes to `carry_out`, by the name of the part.
    workdir: on a disk that all machines share; jobs/ there has logs and results.

  Returns:
    By name, the value of `carry_out`, or a `UserError` if its job died three times.
    With --wait=false the process ends if some are not done.
  """
  f, results = flags.FLAGS, dict[str, Any]()
  keys = {name: _key(part) for name, part in parts.items()}
  saved = read_object(workdir / BOOK) or {}  # Key of a part -> path of its job's files.
  jobs = collections.defaultdict[str, list[str]](list)
  for name in parts:
    if keys[name] in saved:
      jobs[saved[keys[name]]].append(name)
  queue = _shares([name for name in parts if keys[name] not in saved])
  tries, gone = collections.Counter[str](), dict[str, float]()
  with progress_lines.shown(experiment_flags.progress()):
    while True:
      if queue:
        tasks = [{name: parts[name] for name in names} for names in queue]
        started = dict(zip(_submit(binary, tasks, workdir), queue, strict=True))
        tries.update(names[0] for names in queue)
        saved |= {keys[name]: job for job, names in started.items() for name in names}
        write_atomically(workdir / BOOK, json.dumps(saved, indent=1) + '\n')
        jobs |= started
        queue = []
      now = time.monotonic()
      gone = {job: gone.get(job, now) for job in _absent(jobs)}
      for job, names in list(jobs.items()):
        outcome = _outcome(job)
        if outcome is None and now - gone.get(job, now) > _LAG_SECONDS:
          outcome = 'no result'
        if outcome is None:
          continue
        del jobs[job]
        if isinstance(outcome, dict):
          results |= {name: outcome[name] for name in names}
          continue
        text = f'job died ({outcome}); see {job}_0_log.err'
        if tries[names[0]] < _MOST_TRIES:
          logging.warning('%s: %s; submitting it again', ', '.join(names), text)
          queue.append(names)
        else:
          results |= dict.fromkeys(names, UserError(text))
      if not jobs and not queue:
        return {name: results[name] for name in parts}
      if not (f.wait or queue or gone.keys() & jobs.keys()):
        print(f'{len(results)} of {len(parts)} parts are done; repeat to collect them.')
        sys.exit(0)
      folders = '*/seed*', 'tune/*/*/seed*'
      runs = sum(len([*workdir.glob(f'{x}/summary.json')]) for x in folders)
      progress = f'{len(results)} of {len(parts)} parts, {runs} runs are done'
      with progress_lines.waiting_for(progress):
        time.sleep(0 if queue else _POLL_SECONDS)


def _key(part: Any) -> str:
  """A digest of a part and of the options of this command that may change it."""
  others = 'algorithms', 'num_seeds', 'launcher', 'workers', 'wait', 'slurm', 'redo'
  names = [name for name in flags.FLAGS if flags.FLAGS[name].present]
  options = {n: flags.FLAGS[n].value for n in sorted({*names} - {*others})}
  return hashlib.sha256(json.dumps([part, options]).encode()).hexdigest()[:16]


def _shares(names: list[str]) -> list[list[str]]:
  """Names of parts by job: one each on Slurm, shares of about equal size else."""
  workers = flags.FLAGS.workers or sharding.cores()
  count = len(names) if flags.FLAGS.launcher == 'slurm' else workers
  return [names[i::count] for i in range(min(count, len(names)))]


def _submit(
  binary: str, parts: Sequence[dict[str, Any]], workdir: pathlib.Path
) -> list[str]:
  """Submits a job for each of some parts; returns the paths of their files."""
  exists = importlib.util.find_spec('submitit')
  check(exists, "launcher: needs submitit; pip install 'fesem_jax[cluster]'")
  import submitit

  f, folder = flags.FLAGS, workdir.absolute() / 'jobs'
  folder.mkdir(parents=True, exist_ok=True)
  folder /= str(len([*folder.glob('*/')]))  # Numbers of processes repeat.
  tasks = [Task(binary, sys.argv[1:], some) for some in parts]
  options: dict[str, Any] = {'timeout_min': 10**6}
  if f.launcher == 'slurm':
    chosen = split_call(f'sbatch({f.slurm})', 'slurm')[1]
    options = {'time': 60, 'array_parallelism': f.workers or 1000}
    options |= {str(name): value(text) for name, text in chosen.items()}
  else:
    gpus = [path.name[6:] for path in pathlib.Path('/dev').glob('nvidia[0-9]*')]
    gpus = os.environ.get('CUDA_VISIBLE_DEVICES', ','.join(sorted(gpus))).split(',')
    for i, task in enumerate(tasks):
      task.gpu = gpus[i % len(gpus)]
  kinds = {'slurm': submitit.SlurmExecutor, 'processes': submitit.LocalExecutor}
  try:
    executor = kinds[f.launcher](folder)
    executor.update_parameters(**options)
    jobs = executor.submit_array(tasks)
  except (ValueError, RuntimeError, submitit.core.utils.FailedJobError) as e:
    raise UserError(f'{f.launcher}: {str(e).strip().splitlines()[0]:.80}') from e
  return [str(folder / job.job_id) for job in jobs]


def _absent(jobs: Iterable[str]) -> set[str]:
  """Jobs that neither run nor wait in the queue; none if Slurm does not answer."""
  command, word = ['ps', '-A', '-o', 'pid=,args='], 'submitit'
  if flags.FLAGS.launcher == 'slurm':
    command, word = ['squeue', '--me', '--noheader', '--array', '--format=%i'], ''
  done = subprocess.run(command, capture_output=True, text=True)
  present = {line.split()[0] for line in done.stdout.splitlines() if word in line}
  absent = {job for job in jobs if job.rpartition('/')[2] not in present}
  return set() if done.returncode else absent


def _outcome(job: str) -> dict[str, Any] | str | None:
  """Values that a job returned, by part, or its error; None without a result yet."""
  if not (path := pathlib.Path(f'{job}_0_result.pkl')).exists():
    return None
  state, content = pickle.loads(path.read_bytes())
  return content if state == 'success' else content.strip().splitlines()[-1]
