r"""Computes published figures again, one recipe a paper, and writes the page on them.

  fesem-reproduce --list
  fesem-reproduce --list --paper=p_fed_me
  fesem-reproduce --paper=p_fed_me
  fesem-reproduce --paper=mc_mahan --cells=two_nn_iid_c10,two_nn_iid_c20
  fesem-reproduce --page

A recipe, papers/NAME.toml, has a cell for each figure of a table. Each seed
(and each learning rate, where the best of several counts) of a cell is one run of
fesem-run in WORKDIR/PAPER/CELL, so the same command goes on where it stopped. A
finished cell is an entry of the ledger, LEDGER/PAPER/CELL.json: commands, commit,
versions, machine, seeds, values, curves and processor hours. A cell with an entry is
not run again, but with --rerun. --page writes the page with all entries, what is
published and a verdict, and the pictures that changed. --budget leaves out cells that
take more processor hours than are left. Data are found in FESEM_DATA_DIR, or in
--data_dir.
"""

import importlib
import json
import os
import pathlib
import platform
import resource
import shutil
import signal
import subprocess
import sys
from typing import Any

from absl import flags

from fesem_jax.run.workdir import locked
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.interrupts import Stopped

from . import ledger, page, recipes
from .recipes import Cell, Recipe

# The wheel holds both folders inside of `fesem_jax`.
_PACKAGE = str(__package__)
_EXPERIMENTS = _PACKAGE.replace('reproductions', 'experiments')
_start = importlib.import_module(f'{_EXPERIMENTS}.start')

_TIME = 'processor_seconds'  # File beside the workdirs of a cell.
# Percent; processors round differently.
SMALL_TOLERANCE = 0.3


def run_flags(cell: Cell, rate: float | None, seed: int) -> list[str]:
  """The flags of one run."""
  of_rate = [] if rate is None else [f'--learning_rate={rate:g}']
  flags = [flag.replace('{seed}', str(seed)) for flag in cell.flags]
  return [*flags, *of_rate, f'--seed={seed}']


def carry_out(command: list[str], workdir: pathlib.Path) -> None:
  """Runs fesem-run in a process of its own, and adds its processor time to a file.

  Raises `UserError` if it fails, and `Stopped` if it was interrupted.
  """
  more = [
    f'--workdir={workdir}',
    '--save_models=false',
    '--report_html=false',
    '--quiet',
  ]
  before = _processor_seconds()
  named = [text.replace('=reproductions.', f'={_PACKAGE}.') for text in command]
  command = [sys.executable, '-m', f'{_EXPERIMENTS}.run', *named, *more]
  # In a session of its own, Ctrl-C comes to it from here alone, once.
  process, interrupted = subprocess.Popen(command, start_new_session=True), False
  while process.poll() is None:
    try:
      process.wait()
    except KeyboardInterrupt:  # Signals of a scheduler raise it, too.
      process.send_signal(signal.SIGINT)
      interrupted = True
  spent = workdir.with_name(f'{workdir.name}.{_TIME}')
  if workdir.is_dir():
    earlier = float(spent.read_text()) if spent.is_file() else 0.0
    spent.write_text(f'{earlier + _processor_seconds() - before:.1f}\n')
  if interrupted and process.returncode:
    raise Stopped('Stopped; run the same command again to continue.')
  if process.returncode:
    raise UserError(
      f'The run in {workdir} ended with exit code {process.returncode}, see above; the '
      'same command resumes it.'
    )


def _processor_seconds() -> float:
  """Processor time of all processes that this one has waited for."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def run_cell(cell: Cell, folder: pathlib.Path) -> tuple[list[pathlib.Path], Any]:
  """Runs what is missing of a cell that has runs of its own; `folder` is the cell's.

  Returns the workdir of each seed, and (chosen rate, value by rate), None where there
  is none to choose. Of several rates all seeds take the one that is best with seed 0.
  """

  def of(rate: float | None, seed: int) -> pathlib.Path:
    name = f'seed{seed}' if rate is None else f'rate{rate:g}_seed{seed}'
    workdir = folder / name
    if not (workdir / 'summary.json').is_file():
      carry_out(run_flags(cell, rate, seed), workdir)
    return workdir

  if not cell.rates:
    return [of(None, seed) for seed in range(cell.seeds)], None
  values = {rate: ledger.value(cell, of(rate, 0)) for rate in cell.rates}
  fewest = cell.measure in ('rounds', 'seconds')
  known = {r: -v if fewest else v for r, v in values.items() if v is not None}
  best = max(known, key=lambda r: known[r]) if known else cell.rates[0]
  workdirs = [of(best, seed) for seed in range(cell.seeds)]
  return workdirs, (best, {f'{rate:g}': value for rate, value in values.items()})


def entry(cell: Cell, workdirs: list[pathlib.Path], tuned: Any) -> ledger.Entry:
  """Entry of the ledger for a finished cell, from what `run_cell` returns."""
  summary = json.loads((workdirs[0] / 'summary.json').read_text())
  rate = tuned[0] if tuned else None
  times = list(workdirs[0].parent.glob(f'*.{_TIME}'))
  seconds = sum(float(p.read_text()) for p in times)
  curves = [ledger.curve(cell, w) for w in workdirs]
  return {
    'command': ['fesem-run', *run_flags(cell, rate, 0)],
    'seeds': [int(w.name.rpartition('seed')[2]) for w in workdirs],
    'values': [ledger.value(cell, w) for w in workdirs],
    'last': [points[-1][1] if points else None for points in curves],
    'best': [max((v for _, v in points), default=None) for points in curves],
    'published': cell.published,
    'deviation': cell.deviation,
    'measure': cell.measure,
    'report': cell.report,
    'rates': tuned[1] if tuned else {},
    'curve': ledger.thinned(curves[0]),
    'processor_hours': round(seconds / 3600, 3) if times else None,
    'commit': summary['commit'],
    'versions': summary['versions'],
    'machine': f'{platform.machine()}, {os.cpu_count()} cores',
  }


def is_stale(source: Cell, kept: ledger.Entry) -> bool:
  """Tells if an entry is of other flags, rates or seeds than its cell has now.

  `source` is the cell whose runs the entry is of.
  """
  rates = source.rates or (None,)
  commands = [['fesem-run', *run_flags(source, rate, 0)] for rate in rates]
  rates_now = {f'{rate:g}' for rate in source.rates}
  same = kept.get('command') in commands and set(kept.get('rates', ())) == rates_now
  return not same or len(kept['values']) != source.seeds


def reproduce(
  recipe: Recipe,
  chosen: list[str],
  workdir: pathlib.Path,
  kept: pathlib.Path,
  budget: float,
  rerun: bool = False,
) -> float:
  """Runs cells of a recipe and enters them in the ledger.

  `chosen` are names of cells; empty for all. `workdir` is the folder of all papers,
  `kept` that of the ledger. `budget` is how many processor hours may be spent; returns
  those that are left. `rerun` also runs cells that the ledger has, and replaces their
  entries.
  """
  wanted = [recipe.cell(name) for name in chosen] if chosen else list(recipe.cells)
  held = 0
  again = workdir / 'rerun' / recipe.name
  run_now = set[str]()
  for cell in wanted:
    source = recipe.source_of(cell)
    folder = (again if rerun else workdir / recipe.name) / source.name
    before = ledger.read(kept, recipe.name, cell.name)
    finished = (
      source.name in run_now
      if rerun
      else (ledger.read(kept, recipe.name, source.name) is not None)
    )
    if source.hours > budget and not finished:
      print(
        f'{recipe.name}/{cell.name}: left out, as it takes about {source.hours:g} '
        f'processor hours and {budget:.2f} are left; raise --budget.'
      )
      continue
    known, note = None if rerun else before, ''
    if known is None:
      print(f'{recipe.name}/{cell.name}: {cell.row}')
      workdirs, tuned = run_cell(source, folder)
      workdirs = workdirs[: cell.seeds]
      known = entry(cell._replace(flags=source.flags), workdirs, tuned)
      ledger.write(kept, recipe.name, cell.name, known)
      budget -= (known['processor_hours'] or 0) if not finished else 0
      run_now.add(source.name)
      if before is not None:
        of_before = f'commit {str(before.get("commit"))[:8]}'
        note = f'the ledger had {page.here(cell, before)} ({of_before}); '
    elif is_stale(source._replace(seeds=cell.seeds), known):
      file = ledger.path(kept, recipe.name, cell.name)
      raise UserError(f'{file}: has other flags than {cell.name}; delete it')
    else:
      held += 1
      note = f'not run now, the ledger has it (commit {str(known.get("commit"))[:8]}): '
    words = page.in_words(cell, known)
    print(f'{recipe.name}/{cell.name}: {note}{words}')
  if held:
    print(
      f'{recipe.name}: {held} of {len(wanted)} cells were not run, as {kept} has them; '
      'to measure them now and replace them, add --rerun'
    )
  if rerun:  # The next one begins anew; after an interruption this one goes on.
    shutil.rmtree(again, ignore_errors=True)
  return budget


def checked(recipe: Recipe, workdir: pathlib.Path) -> str:
  """Runs the small cell of a recipe anew, and says that it came out as recorded.

  `workdir` is the folder of all papers. Raises `UserError` if it came out differently.
  """
  folder = workdir / 'small' / recipe.name
  shutil.rmtree(folder, ignore_errors=True)
  carry_out(recipe.small_flags(), folder)
  percent = ledger.accuracy(folder)
  if recipe.small_value is None or abs(percent - recipe.small_value) > SMALL_TOLERANCE:
    raise UserError(
      f'{recipe.name}: its small run deploys {percent:.3f} %, but its recipe records '
      f'{recipe.small_value} %; see {folder}.'
    )
  return f'{recipe.name}: {percent:.3f} %, as recorded'


def main(argv: list[str]) -> None:
  _start.no_positional(argv)
  f = flags.FLAGS
  kept = pathlib.Path(f.ledger)
  if f.data_dir:
    os.environ['FESEM_DATA_DIR'] = f.data_dir
  check(not f.cells or len(f.paper) == 1, 'cells: needs one paper')
  if f.list:
    of_all = f.paper in ([], ['all'])
    papers = [] if of_all else list(map(recipes.read, f.paper))
    tables = [ledger.cells_of(recipe, kept) for recipe in papers]
    print('\n\n'.join(tables or [ledger.listed(recipes.names(), kept)]))
    return
  if not f.paper and not f.page and not f.check:
    raise UserError('Name a --paper (--list shows them), or ask for the --page.')
  chosen = recipes.names() if f.paper == ['all'] else f.paper
  read = [recipes.read(name) for name in chosen]
  workdir = pathlib.Path(f.workdir)
  if f.check:
    for recipe in read or map(recipes.read, recipes.names()):
      print(checked(recipe, workdir))
    return
  if read:
    with locked(workdir):
      budget = f.budget
      for recipe in read:
        budget = reproduce(recipe, f.cells, workdir, kept, budget, f.rerun)
  if f.page:
    every = [recipes.read(name) for name in recipes.names()]
    print(page.write(every, kept, pathlib.Path('docs/published_figures.md')))


if __name__ == '__main__':
  flags.DEFINE_list(
    'paper',
    [],
    f'Recipes: {", ".join(recipes.names())}; all; or a file NAME.toml of your own.',
  )
  flags.DEFINE_list('cells', [], 'Cells of one recipe; default: all of them.')
  flags.DEFINE_bool(
    'list',
    False,
    'List the recipes, or the cells of --paper, and which of them --ledger holds.',
  )
  flags.DEFINE_bool(
    'rerun', False, 'Also run cells that --ledger has, and replace their entries.'
  )
  flags.DEFINE_bool(
    'check', False, 'Only run the small cell of each recipe, a few seconds long.'
  )
  flags.DEFINE_bool(
    'page', False, 'Write docs/published_figures.md with what the ledger holds.'
  )
  flags.DEFINE_string('ledger', 'benchmarks/results/papers', 'Folder of the ledger.')
  flags.DEFINE_string('workdir', 'runs/reproduce', 'Folder of all runs.')
  flags.DEFINE_float(
    'budget', 1e6, 'Processor hours to spend; a cell that needs more is left out.'
  )
  flags.DEFINE_string('data_dir', '', 'Folder of the data files; see fesem-run.')
  _start.start(main)
