"""Parts of a command as jobs of Slurm or processes of this machine, by submitit."""

import collections
import dataclasses
import hashlib
import importlib
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
from absl import flags, logging

from fesem_jax.core import sharding
from fesem_jax.run.results.files import read_object
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.expressions import split_call, value
from fesem_jax.utils.interrupts import SIGNALS, Stopped
from fesem_jax.utils.ranges import Range

from . import flags as experiment_flags
from . import start
from .options import OneOf

# In the workdir: the job of each part.
BOOK = 'jobs/jobs.json'
# Submissions of a job that dies.
_MOST_TRIES = 3
# A job has died if it is gone for this long without a result: network disks lag.
_LAG_SECONDS = {'slurm': 15.0, 'processes': 2.0}
_POLL_SECONDS = {'slurm': 5.0, 'processes': 0.5}
# Resources of a Slurm job; one that reaches its time limit continues in the queue.
_SLURM = {'job_name': 'fesem', 'time': 60}
_ENDLESS = 10**6  # Minutes of a process, and continuations.


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


class Task:
  """Parts of a command, by name, that one job carries out.

  After SIGTERM (preemption) or SIGUSR2 (time limit) it saves and ends. A job of Slurm
  then returns to the queue, but not if it was canceled.
  """

  def __init__(self, binary: str, arguments: list[str], parts: dict[str, Any]):
    self.binary, self.arguments, self.parts = binary, arguments, parts

  def __call__(self) -> dict[str, Any]:
    """What `carry_out` of the binary returns for each part."""
    requeue: Any = signal.getsignal(signal.SIGUSR2)  # Set by submitit.
    for number in SIGNALS:
      signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
      start.configure()
      module = importlib.import_module(f'{__package__}.{self.binary}')
      module.define_flags()
      start.parse_flags([self.binary, *self.arguments, '--launcher='])
      return {name: module.carry_out(part) for name, part in self.parts.items()}
    except (Stopped, KeyboardInterrupt):
      for number in (*SIGNALS, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
      if _runs_in_slurm():
        requeue(signal.SIGUSR2, None)
      sys.exit(start.INTERRUPTED)

  def checkpoint(self) -> Any:
    """What submitit runs when the job continues: the same."""
    from submitit.helpers import DelayedSubmission

    return DelayedSubmission(self)


def _runs_in_slurm() -> bool:
  """True in a job of Slurm that is not canceled, which squeue shows as completing."""
  if os.environ.get('SUBMITIT_EXECUTOR') != 'slurm':
    return False
  job = f'--jobs={os.environ["SLURM_JOB_ID"]}'
  command = ['squeue', '--noheader', '--format=%T', job]
  return b'RUNNING' in subprocess.run(command, capture_output=True).stdout


def setup_devices() -> None:
  """Sets up JAX; a process that launches jobs leaves accelerators to them."""
  if flags.FLAGS.launcher:
    jax.config.update('jax_platforms', 'cpu')
  sharding.setup_devices(flags.FLAGS.num_devices)


class _Job(NamedTuple):
  folder: str
  number: str  # of Slurm, or of the process

  def file(self, ending: str) -> pathlib.Path:
    return pathlib.Path(self.folder, f'{self.number}_0_{ending}')


def launch(
  binary: str, parts: Mapping[str, Any], workdir: pathlib.Path
) -> dict[str, Any] | None:
  """Carries out parts of this command as jobs, by --launcher.

  Args:
    binary: module of this package with `define_flags` and `carry_out(part)`.
    parts: what a job passes to `carry_out`, by the name of the part.
    workdir: on a disk that all machines share; jobs/ there has logs and results.

  Returns:
    By name, the value of `carry_out`, or a `UserError` if its job died three times.
    None if --wait=false and some are not done.
  """
  f, book = flags.FLAGS, workdir / BOOK
  keys = {name: _key(part) for name, part in parts.items()}
  saved, jobs = read_object(book) or {}, dict[_Job, list[str]]()
  for name in parts:
    if keys[name] in saved:
      jobs.setdefault(_Job(*saved[keys[name]]), []).append(name)
  queue = _shares([name for name in parts if keys[name] not in saved])
  tries, gone = collections.Counter[tuple[str, ...]](), dict[_Job, float]()
  results = dict[str, Any]()
  with progress_lines.shown(experiment_flags.progress()):
    while True:
      if queue:
        tasks = [{name: parts[name] for name in names} for names in queue]
        started = dict(zip(_submit(binary, tasks, workdir), queue, strict=True))
        tries.update(map(tuple, queue))
        jobs, queue = jobs | started, []
        saved |= {keys[name]: job for job, names in started.items() for name in names}
        write_atomically(book, json.dumps(saved, indent=1) + '\n')
      running = _running()
      for job, names in list(jobs.items()):
        outcome = _outcome(job)
        if outcome is None and running is not None and job.number not in running:
          lost = time.monotonic() - gone.setdefault(job, time.monotonic())
          outcome = 'no result' if lost > _LAG_SECONDS[f.launcher] else None
        if outcome is None:
          continue
        del jobs[job]
        if isinstance(outcome, dict):
          results |= {name: outcome[name] for name in names}
          continue
        text = f'job {job.number} of {", ".join(names)}: {outcome}'
        text = f'{text}; see {job.file("log.err")}'
        if tries[tuple(names)] < _MOST_TRIES:
          logging.warning('%s; submitting it again', text)
          queue.append(names)
        else:
          results |= dict.fromkeys(names, UserError(text))
      if not jobs and not queue:
        return results
      if not (f.wait or queue or gone.keys() & jobs.keys()):
        print(f'{len(results)} of {len(parts)} parts are done; repeat to collect them.')
        return None
      _show(len(results), len(parts), workdir)
      time.sleep(0 if queue else _POLL_SECONDS[f.launcher])


def _key(part: Any) -> str:
  """A digest of a part and of the options of this command that may change it."""
  own = [*(field.name for field in dataclasses.fields(Launch)), 'redo']
  options = {
    name: flags.FLAGS[name].value
    for name in sorted(flags.FLAGS)
    if flags.FLAGS[name].present and name not in own
  }
  return hashlib.sha256(json.dumps([part, options]).encode()).hexdigest()[:16]


def _shares(names: list[str]) -> list[list[str]]:
  """Names of parts by job: one each on Slurm, shares of about equal size else."""
  f = flags.FLAGS
  if f.launcher == 'slurm':
    return [[name] for name in names]
  workers = f.workers or sharding.cores()
  return [names[i::workers] for i in range(min(workers, len(names)))]


def _submit(
  binary: str, parts: Sequence[dict[str, Any]], workdir: pathlib.Path
) -> list[_Job]:
  """Submits a job for each of some parts."""
  try:
    import submitit
  except ImportError as e:
    raise UserError("launcher: needs submitit; pip install 'fesem_jax[cluster]'") from e
  f, folder = flags.FLAGS, workdir / 'jobs'
  folder.mkdir(parents=True, exist_ok=True)
  # Numbers of processes repeat.
  folder = folder / str(sum(path.is_dir() for path in folder.iterdir()))
  tasks = [Task(binary, sys.argv[1:], some) for some in parts]
  if f.launcher == 'slurm':
    _, options = split_call(f'sbatch({f.slurm})' if f.slurm else 'sbatch', 'slurm')
    given = {str(name): value(text) for name, text in options.items()}
    if f.workers:
      given['array_parallelism'] = f.workers
    try:
      executor = submitit.SlurmExecutor(folder, max_num_timeout=_ENDLESS)
      executor.update_parameters(**_SLURM | given)
      jobs = executor.submit_array(tasks)
    except (ValueError, RuntimeError, submitit.core.utils.FailedJobError) as e:
      raise UserError(f'slurm: {str(e).strip().splitlines()[0]:.90}') from e
  else:
    executor, jobs = submitit.LocalExecutor(folder, max_num_timeout=_ENDLESS), []
    gpus = _gpus()
    for i, task in enumerate(tasks):
      gpu = gpus[i % len(gpus) :][:1] if gpus else []
      executor.update_parameters(
        timeout_min=_ENDLESS, gpus_per_node=len(gpu), visible_gpus=gpu
      )
      jobs.append(executor.submit(task))
  return [_Job(str(folder), job.job_id) for job in jobs]


def _gpus() -> list[int]:
  """Numbers of the NVIDIA GPUs of this machine that this process may use."""
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  if visible is not None:
    return [int(number) for number in visible.split(',') if number.isdecimal()]
  return list(range(len(list(pathlib.Path('/dev').glob('nvidia[0-9]*')))))


def _running() -> set[str] | None:
  """Numbers of jobs that are queued or run; None if Slurm does not answer."""
  command, word = ['ps', '-A', '-o', 'pid=,args='], 'submitit'
  if flags.FLAGS.launcher == 'slurm':
    command, word = ['squeue', '--me', '--noheader', '--array', '--format=%i'], ''
  try:
    listed = subprocess.run(command, check=True, capture_output=True, text=True)
  except subprocess.CalledProcessError:
    return None
  return {line.split()[0] for line in listed.stdout.splitlines() if word in line}


def _outcome(job: _Job) -> dict[str, Any] | str | None:
  """What a job returned, by part, or its error; None without a result yet."""
  path = job.file('result.pkl')
  if not path.exists():
    return None
  state, content = pickle.loads(path.read_bytes())
  return content if state == 'success' else content.strip().splitlines()[-1]


def _show(done: int, total: int, workdir: pathlib.Path) -> None:
  """Shows the progress of jobs and of their runs."""
  if (display := progress_lines.display()) is not None:
    folders = '*/seed*', 'tune/*/*/seed*'
    runs = sum(len([*workdir.glob(f'{x}/summary.json')]) for x in folders)
    display.rounds(done, total, f'{runs} runs finished', unit='part')
