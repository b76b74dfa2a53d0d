"""Trains one client again as it did in a round of a run, and shows each local step.

  fesem-replay WORKDIR --round=12 --client=c3

Shows the loss of each batch, the norm of its gradient, the distance from the start, and
the first step after which a parameter is not finite. Nothing in WORKDIR changes.
"""

import contextlib
import pathlib
from typing import Any

import jax
import numpy as np
from absl import flags

from fesem_jax import data
from fesem_jax.core import sharding
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.replay_results import Replay, Training
from fesem_jax.run.replaying import replay
from fesem_jax.run.results.metrics_file import read_config
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.display import printable
from fesem_jax.utils.errors import check
from fesem_jax.utils.text_tables import aligned, csv_text

from . import flags as experiment_flags
from . import methods
from .build import build_local, build_model, data_of_run
from .start import start

# Steps that are printed: the first and the last ones, and those around a bad one.
_SHOWN = 8

# The share of the largest parameter that may be rounding, which many steps amplify.
_ROUNDING = 1e-3


def rebuilt(
  workdir: pathlib.Path, machine: dict[str, Any]
) -> tuple[Algorithm, FederatedData]:
  """The method and the training split of a run of `fesem-run`, from its config.json.

  `machine` is from `flags.machine`.
  """
  config = read_config(workdir) or {}
  uniform = config['select'] == 'uniform'
  check(uniform, 'select: only uniform draws can be replayed')
  train, *_ = data_of_run(workdir, config, machine['data_dir'])
  if config['algorithm'] == 'oracle':
    train = data.with_true_groups(train)
  local = build_local(config, build_model(config, train), train, machine)
  return methods.configured(config, local), train


def as_text(replayed: Replay) -> str:
  """Text of the outcome, for a terminal."""
  lines = [f'{printable(replayed.client)} in round {replayed.round}:']
  if not replayed.arrived:
    lines.append('it dropped out, or no update of it arrived: it did not train.')
  for number, training in enumerate(replayed.trainings, start=1):
    if len(replayed.trainings) > 1:
      lines.append(f'training {number} of {len(replayed.trainings)}')
    lines += _steps(training)
    lines.append(_ending(training))
  came_from = f'round {replayed.since}' if replayed.since else 'the start'
  records = {True: 'as in metrics.jsonl', False: 'NOT as in metrics.jsonl', None: ''}
  state = {True: 'as in its checkpoint', False: 'NOT as in its checkpoint', None: ''}
  what = [t for t in (records[replayed.same_records], state[replayed.same_state]) if t]
  outcome = f': {", ".join(what)}' if what else ''
  lines.append(f'Run again from {came_from} to round {replayed.round}{outcome}.')
  return '\n'.join(lines)


def _steps(training: Training) -> list[str]:
  """A line for each of some steps, under a heading."""
  count, bad = len(training.loss), training.first_bad_step
  around = [] if bad is None else range(max(1, bad - 2), min(count, bad + 1) + 1)
  shown = {*range(1, min(_SHOWN, count) + 1), *around}
  shown |= set(range(max(1, count - _SHOWN + 1), count + 1))
  rows = [['step', 'loss', 'gradient', 'from start']]
  before = 0
  for step in sorted(shown):
    if step > before + 1:
      rows.append(['...', '', '', ''])
    figures = (training.loss, training.gradient, training.distance)
    rows.append([str(step), *(f'{x[step - 1]:.6g}' for x in figures)])
    before = step
  return aligned(rows, [])


def _ending(training: Training) -> str:
  if training.first_bad_step is not None:
    return f'After step {training.first_bad_step} a parameter is not finite.'
  if training.difference is None:
    return 'The result was not compared with that of the round.'
  if training.difference == 0:
    return 'The result equals that of the round, bit for bit.'
  largest = max(np.abs(x).max(initial=0) for x in jax.tree.leaves(training.end))
  if training.difference > _ROUNDING * largest:
    return (
      'The result DIFFERS from that of the round: parameters by up to '
      f'{training.difference:.2g}.'
    )
  return (
    'The result equals that of the round up to rounding: parameters differ by at most '
    f'{training.difference:.2g}.'
  )


def _csv(replayed: Replay) -> str:
  rows = []
  for number, training in enumerate(replayed.trainings, start=1):
    columns = training.loss, training.gradient, training.distance
    for step, figures in enumerate(zip(*columns, strict=True), start=1):
      rows.append([number, step, *map(float, figures)])
  return csv_text(['training', 'step', 'loss', 'gradient', 'distance'], rows)


def main(argv: list[str]) -> None:
  f = flags.FLAGS
  check(len(argv) == 2, 'workdir: name one, fesem-replay WORKDIR --round=R')
  check(f.client, 'client: name one, as clients.csv does')
  output = pathlib.Path(f.output) if f.output else None
  sharding.setup_devices(f.num_devices)
  workdir, machine = pathlib.Path(argv[1]), experiment_flags.machine()
  with progress_lines.shown(None):
    algorithm, train = rebuilt(workdir, machine)
    replayed = replay(
      algorithm, train, workdir, round=f.round, client=f.client,
      data_placement=machine['data_placement'],
    )  # fmt: skip
  print(as_text(replayed))
  if output is not None:
    with contextlib.suppress(OSError):  # Writing says what is wrong.
      output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, _csv(replayed))
    print(f'Steps: {output}')


def define_flags() -> None:
  """Defines the flags of this binary."""
  experiment_flags.define('machine')
  flags.adopt_module_key_flags(experiment_flags)
  flags.DEFINE_integer('round', 1, 'Round to show, from 1.', lower_bound=1)
  flags.DEFINE_string('client', '', 'Name of the client, as in clients.csv.')
  flags.DEFINE_string('output', '', 'File of all steps as CSV; empty: none.')
  experiment_flags.define_data_dir()


if __name__ == '__main__':
  define_flags()
  start(main)
