"""Files of a run, which it and others read again."""

import functools
import itertools
import json
import pathlib
import shutil

import numpy as np

import fesem_jax as fj
from experiments import held_results
from fesem_jax.analysis import report
from fesem_jax.run.callbacks import ClientHistory
from fesem_jax.run.results import client_history
from tests.fuzz import mutations
from tests.fuzz.forms import Format, all_of, bytes_of, json_of, lines_of, npz_of, one_of
from tests.support import helpers, runs


@functools.cache
def _finished(folder):
  """A run of three rounds with everything that it can write."""
  made = folder / 'run'
  if not made.exists():
    _go(made)
  return made


def _go(folder):
  return runs.simulated(
    workdir=folder, rounds=3, checkpoint_every=1, make_portrait=True, resume=True,
    callbacks=[ClientHistory()], progress=False,
  )  # fmt: skip


_HOME: list[pathlib.Path] = []


def keep_runs_in(folder):
  """Where the run that is spoiled again and again lies."""
  _HOME[:] = [folder]


def _write_run(folder):
  shutil.copytree(_finished(_HOME[0]), folder, dirs_exist_ok=True)


_TURNS = itertools.count()


def _read_run(folder):
  """As a user loads a run, and by turns predicts, makes its page or goes on with it."""
  turn = next(_TURNS) % 4
  with all_of() as each:
    with each():
      run = fj.load_run(folder)
      repr(run.clients), run.assignment, run.clients.of('c1'), run.history
      run.params(client='c1')
      if turn == 0:
        run.predict(np.zeros((2, *helpers.SHAPE), np.float32), client='c1')
        run.export(folder / 'made.msgpack', client='c1')
    with each():
      if turn in (0, 2):
        report.write_report(folder, folder / 'made.html')
    with each():
      if turn in (1, 3):
        _go(folder)


def _read_checkpoints(folder):
  """Goes on with a run whose checkpoints are damaged: its figures are the same."""
  _go(folder)
  assert runs.records(folder) == runs.records(_finished(_HOME[0]))


def _read_page(folder):
  report.write_report(folder, folder / 'made.html')


def _write_comparison(folder):
  for name in ('a', 'b'):
    shutil.copytree(_finished(_HOME[0]), folder / name / 'seed0')
  rows = [{'method': name, 'seeds': [0], 'deployed': {'micro_accuracy': [0.5, 0.1]}}
          for name in ('a', 'b')]  # fmt: skip
  table = {'methods': rows, 'report': 'last', 'paired': [], 'reference': 'a'}
  (folder / 'table.json').write_text(json.dumps(table))


def _change_records(rng, folder):
  path = folder / 'metrics.jsonl'
  lines = path.read_bytes().splitlines()
  at = int(rng.integers(len(lines)))
  lines[at] = mutations.of_json(rng, json.loads(lines[at]))
  path.write_bytes(b'\n'.join(lines) + b'\n')


def _change_about(rng, folder):
  """What models.npz says of itself, with all digests right."""
  path = folder / 'models.npz'
  with np.load(path) as held:
    arrays = dict(held)
  about = mutations.of_json(rng, json.loads(str(arrays.pop('about')[0])))
  arrays['about'] = np.array([about.decode(errors='replace')[: 10**6]])
  np.savez(path, **arrays)


def _change_history(rng, folder):
  import pyarrow
  from pyarrow import parquet

  path = folder / 'history.parquet'
  table = parquet.read_table(path)
  name = table.column_names[rng.integers(len(table.column_names))]
  at = table.schema.get_field_index(name)
  others = [
    pyarrow.array(['x'] * len(table)), pyarrow.array([None] * len(table)),
    pyarrow.array([2**62] * len(table)), pyarrow.array([1.5] * len(table)),
    pyarrow.array([-7] * len(table)), pyarrow.array([b'\xff'] * len(table)),
    pyarrow.array([[1]] * len(table)), pyarrow.array([np.nan] * len(table)),
  ]  # fmt: skip
  match int(rng.integers(0, 5)):
    case 0:
      table = table.remove_column(at)
    case 1:
      table = table.slice(0, int(rng.integers(len(table))))
    case 2:
      table = pyarrow.concat_tables([table, table])
    case _:
      table = table.set_column(at, name, others[rng.integers(len(others))])
  parquet.write_table(table, path, row_group_size=int(rng.choice([7, 3, 1000])))


def _read_history(folder):
  with all_of() as each:
    with each():
      history = client_history.read(folder)
      history.columns()
      history.of('c1')
    with each():
      report.write_report(folder, folder / 'made.html')


def _silhouettes(folder):
  folder.mkdir(parents=True, exist_ok=True)
  held = {'data_digest': 'abc', 'scores': {'2': 0.5, '3': 0.25}}
  (folder / 'seed0.json').write_text(json.dumps(held))


FORMATS = {
  'config.json': Format(
    _write_run,
    one_of(json_of('config.json'), json_of('config.json'), bytes_of('config.json')),
    _read_run,
  ),
  'summary.json': Format(
    _write_run,
    one_of(json_of('summary.json'), json_of('summary.json'), bytes_of('summary.json')),
    _read_run,
  ),
  'metrics.jsonl': Format(
    _write_run, one_of(_change_records, _change_records, bytes_of('metrics.jsonl')),
    _read_run,
  ),
  'clients.csv': Format(
    _write_run, one_of(lines_of('clients.csv', ','), bytes_of('clients.csv')), _read_run
  ),
  'clients.npz': Format(
    _write_run,
    one_of(npz_of('clients.npz'), npz_of('clients.npz'), bytes_of('clients.npz')),
    _read_run,
  ),
  'models.npz': Format(
    _write_run, one_of(npz_of('models.npz'), _change_about, bytes_of('models.npz')),
    _read_run,
  ),
  'history.parquet': Format(
    _write_run, one_of(_change_history, bytes_of('history.parquet')), _read_history
  ),
  'note of a checkpoint': Format(
    _write_run, one_of(json_of('note.json'), bytes_of('note.json')), _read_checkpoints
  ),
  'state of a checkpoint': Format(
    _write_run, bytes_of('checkpoints/*/state/**/*'), _read_checkpoints
  ),
  'table.json': Format(
    _write_comparison, one_of(json_of('table.json'), bytes_of('table.json')), _read_page
  ),
  'silhouettes': Format(
    _silhouettes, one_of(json_of('seed0.json'), bytes_of('seed0.json')),
    lambda folder: held_results.read(folder / 'seed0.json'),
  ),
}  # fmt: skip
