"""The commands that are tortured, and the small data that they need."""

import os
import pathlib
from typing import NamedTuple

from benchmarks.torture.children import ROOT

_TEXT_CHARACTERS = 4_000
_CALLBACKS = '--callbacks=benchmarks.torture.hooks:callback'

_SMALL = (
  '--dataset=digits', '--partition=rotated', '--num_clients=8',
  '--examples_per_client=20', '--hidden=8', '--local_epochs=1',
)  # fmt: skip
_RUN = ('--rounds=12', '--checkpoint_every=1', _CALLBACKS)


class Case(NamedTuple):
  """A command.

  Attributes:
    name: of it in tables.
    module: of `experiments`.
    arguments: but the workdir.
    moments: at which it is killed, of `hooks.MOMENTS`; 'at any time'; and 'one of two
      processes'.
  """

  name: str
  module: str
  arguments: tuple[str, ...]
  moments: tuple[str, ...]

  def command(self, workdir: pathlib.Path) -> list[str]:
    """Its arguments."""
    given = [*self.arguments, f'--workdir={workdir}']
    processes = ['--num_processes=2', '--'] if self.module == 'launch_local' else []
    return [*processes, *given]


_OF_RUNS = (
  'in a round', 'in a callback', 'in a save', 'between renames',
  'at a file of the run', 'at a removal', 'while a report is written', 'at any time',
)  # fmt: skip

CASES = (
  Case('FeSEM', 'run',
    (*_SMALL, *_RUN, '--algorithm=fesem', '--num_clusters=2', '--clients_per_round=5',
     '--client_metrics_every=1'), _OF_RUNS),
  Case('IFCA', 'run',
    (*_SMALL, *_RUN, '--algorithm=hypo_cluster', '--num_clusters=2',
     '--init_restarts=1', '--init_rounds=0'), _OF_RUNS),
  Case('SCAFFOLD', 'run',
    (*_SMALL, *_RUN, '--algorithm=scaffold', '--clients_per_round=5'), _OF_RUNS),
  Case('FedEM', 'run',
    (*_SMALL, *_RUN, '--algorithm=fed_em', '--num_clusters=2'), _OF_RUNS),
  Case('a sequence task', 'run',
    ('--dataset=shakespeare', '--source=text', '--task=sequence', '--text_stride=80',
     '--model=gru', '--hidden=8', '--min_examples=2', '--local_epochs=1',
     '--algorithm=fesem', '--num_clusters=2', '--rounds=3', '--checkpoint_every=1',
     _CALLBACKS),
    (*_OF_RUNS, 'while a cache is written', 'before a cache is renamed')),
  Case('compare', 'compare',
    (*_SMALL, '--rounds=4', '--checkpoint_every=1', _CALLBACKS, '--num_seeds=2',
     '--algorithms=fed_avg,fesem(2)'), (*_OF_RUNS, 'while figures are drawn')),
  Case('two processes', 'launch_local',
    (*_SMALL, *_RUN, '--algorithm=fesem', '--num_clusters=2'),
    ('one of two processes',)),
)  # fmt: skip


def write_data(folder: pathlib.Path) -> None:
  """Writes the text of the sequence task, and makes it the data of all commands."""
  path = folder / 'data' / 'tinyshakespeare' / 'input.txt'
  path.parent.mkdir(parents=True)
  held = [
    pathlib.Path(where) / 'tinyshakespeare' / 'input.txt'
    for where in (os.environ.get('FESEM_DATA_DIR', ''), ROOT.parent / 'shared' / 'data')
  ]
  file = next((p for p in held if p.is_file()), None)
  if file is not None:
    text = file.read_text()[:_TEXT_CHARACTERS]
  else:
    line = 'The quick brown fox jumps over the lazy dog, and then it sleeps. '
    text = ''.join(f'SPEAKER {i % 6}:\n{line * 5}\n\n' for i in range(60))
  path.write_text(text)
  os.environ['FESEM_DATA_DIR'] = str(folder / 'data')
