r"""Compares methods over seeds and writes the table of the paper.

  python -m experiments.compare --algorithms='non_fed,fed_avg,fesem(2),fesem(4)' \
      --num_seeds=5 --dataset=digits --partition=rotated --workdir=runs/table

Rows are methods in the order of the paper: `name(K)` sets --num_clusters, and
`name(K;flag=value;...)` what only this row is to differ in, such as
'fed_sgd(learning_rate=0.5)' or 'fesem(4;prox_lambda=0.1)'. Columns are micro accuracy,
micro F1, macro accuracy and macro F1 of the fine-tuned models, then of the
deployed ones (and, in the files, of clients that took no part, with
--unseen_fraction), as mean +- standard deviation over seeds, in percent. The table
is written to WORKDIR/table.{md,csv,tex}, a figure to WORKDIR/plots/. The same
command again runs only what is missing.
"""

import csv
import io
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import flags

from experiments import flags as experiment_flags
from experiments import run as experiment
from fesem_jax import algorithms, sharding
from fesem_jax.atomic import write_atomically
from fesem_jax.display import in_latex, in_markdown, shown
from fesem_jax.errors import Diverged, UserError, check_choice
from fesem_jax.programs import Programs
from fesem_jax.workdir import locked

_COLUMNS = ('micro_accuracy', 'micro_f1', 'macro_accuracy', 'macro_f1')
_KINDS = ('finetuned', 'deployed')
_HEADINGS = {
  'micro_accuracy': 'micro-acc',
  'micro_f1': 'micro-F1',
  'macro_accuracy': 'macro-acc',
  'macro_f1': 'macro-F1',
}

# Flags of local training that a row may set for itself, beside the method's options.
_OWN_FLAGS = (
  'learning_rate', 'optimizer', 'batch_size', 'local_epochs', 'local_steps',
  'finetune_epochs', 'rounds',
)  # fmt: skip

# A diverged run is None; a method that could not run has none.
Summaries = dict[str, list[dict[str, Any] | None]]


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
  """'fesem(4;learning_rate=1)' -> ('fesem', {'num_clusters': 4, 'learning_rate': 1.0}).

  Raises:
    UserError: on anything that is not NAME, NAME(K) or NAME(K;FLAG=VALUE;...).
  """
  match = re.fullmatch(r'\s*(\w+)\s*(?:\(([^()]*)\))?\s*', text)
  malformed = UserError(
    f'--algorithms: {text!r} is not NAME, NAME(K) or NAME(K;FLAG=VALUE), such as '
    'fesem(4) or fesem(4;learning_rate=0.1).'
  )
  if match is None:
    raise malformed
  name, inside = match.groups()
  check_choice('algorithms', name, tuple(algorithms.METHODS))
  chosen: dict[str, Any] = {}
  for part in inside.split(';') if inside else []:
    flag, equals, value = map(str.strip, part.partition('='))
    if not equals and not flag.isdecimal():
      raise malformed
    if not equals:
      flag, value = 'num_clusters', flag
    if flag in chosen:
      raise UserError(f'--algorithms: {text!r} sets {flag} twice.')
    if flag not in _OWN_FLAGS:
      algorithms.check_options(name, {flag: value})
    try:
      chosen[flag] = _parser(flag)(value)
    except ValueError as e:
      raise UserError(f'--algorithms: {text!r}: {e}.') from e
  return name, chosen


def _parser(flag: str) -> Callable[[str], Any]:
  """What makes a flag's value of its text."""
  return int if flag == 'num_clusters' else flags.FLAGS[flag].parser.parse


def label_of(name: str, chosen: dict[str, Any]) -> str:
  """How the table calls a method, e.g. 'fesem(4)'."""
  inside = [str(chosen['num_clusters'])] if 'num_clusters' in chosen else []
  inside += [f'{o}={v}' for o, v in chosen.items() if o != 'num_clusters']
  return f'{name}({";".join(inside)})' if inside else name


def configurations(
  methods: list[str], num_seeds: int, chosen: dict[str, Any]
) -> dict[str, list[dict[str, Any]]]:
  """Label of each method -> its configuration for each seed.

  Raises:
    UserError: on a chosen option that none of the methods has, or on a method
      listed twice.
  """
  parsed = [parse_method(text) for text in methods]
  order = list(algorithms.METHODS)
  parsed.sort(key=lambda p: (order.index(p[0]), p[1].get('num_clusters', 0)))
  for option in chosen:
    if not any(option in algorithms.options(name) for name, _ in parsed):
      raise UserError(f'--{option} does not apply to any of --algorithms.')
  table = {}
  for name, options in parsed:
    applying = {o: v for o, v in chosen.items() if o in algorithms.options(name)}
    own = {o: v for o, v in options.items() if o in algorithms.options(name)}
    config = experiment_flags.configuration(name, applying | own) | options
    if 'num_clusters' in config:
      options = {'num_clusters': config['num_clusters']} | options
    label = label_of(name, options)
    if label in table:
      raise UserError(f'--algorithms: {label} is listed twice.')
    seeds = range(config['seed'], config['seed'] + num_seeds)
    table[label] = [config | {'seed': seed} for seed in seeds]
  return table


def parse_search(text: str) -> tuple[str, list[Any]]:
  """'learning_rate:0.01,0.03' -> ('learning_rate', [0.01, 0.03]).

  Raises:
    UserError: on anything else, or a name or value that is not a flag's.
  """
  name, _, values = text.partition(':')
  tunable = (*experiment_flags.common(), *experiment_flags.method_options())
  if (
    not values or name not in tunable or name in ('seed', 'evaluate_on', 'num_clusters')
  ):
    raise UserError(f'--tune={text} is not FLAG:VALUE,VALUE, e.g. learning_rate:0.1,1.')
  try:
    return name, [flags.FLAGS[name].parser.parse(v) for v in values.split(',')]
  except ValueError as e:
    raise UserError(f'--tune={text}: {e}') from e


def search(
  configs: list[dict[str, Any]],
  name: str,
  values: list[Any],
  score: Callable[[dict[str, Any]], float],
) -> list[dict[str, Any]]:
  """A method's configurations with the best of some values.

  Args:
    configs: one for each seed; the first one's seed is searched with.
    name: flag to choose; a method that does not have it is left alone.
    values: its candidates.
    score: runs a configuration that measures on validation examples; higher is
      better, -inf if it diverged. Ties go to the first value.
  """
  if name not in configs[0]:
    return configs
  tries = [configs[0] | {name: v, 'evaluate_on': 'validation'} for v in values]
  scores = [score(config) for config in tries]
  best = values[int(np.argmax(scores))]
  return [config | {name: best} for config in configs]


def mean_and_std(values: list[float]) -> tuple[float, float | None]:
  """Mean and sample standard deviation (None for one seed), in percent."""
  percent = 100 * np.array(values)
  return float(percent.mean()), float(percent.std(ddof=1)) if len(values) > 1 else None


def rows(summaries: Summaries) -> list[dict[str, Any]]:
  """One dict for each method: label, seeds, (mean, std) by column, ARI."""
  out = []
  for label, runs in summaries.items():
    done = [s for s in runs if s is not None]
    row: dict[str, Any] = {'method': label, 'seeds': len(runs)}
    row['diverged'] = len(runs) - len(done)
    for kind in (*_KINDS, 'unseen'):
      for column in _COLUMNS:
        values = [s[kind][column] for s in done if s.get(kind)]
        row[f'{kind}_{column}'] = mean_and_std(values) if values else None
    aris = [s['clusters']['ari'] for s in done if s['clusters']]
    known = [a for a in aris if a is not None]
    row['ari'] = (float(np.mean(known)), float(np.min(known))) if known else None
    seconds = [s['timing']['seconds_per_round'] for s in done]
    seconds = [s for s in seconds if s is not None]
    row['seconds_per_round'] = float(np.median(seconds)) if seconds else None
    row['untested'] = max((s['clients_without_test_examples'] for s in done), default=0)
    row['notes'] = done[0].get('notes', []) if done else []
    if failed := sum(s.get('finetuning_failed') or 0 for s in done):
      row['notes'] = row['notes'] + [
        f'fine-tuning of {failed} clients, in all seeds, diverged; the deployed model '
        'counts for them.'
      ]
    out.append(row)
  return out


def _cell(row: dict[str, Any], key: str, join: str) -> str:
  value = row[key]
  if value is None and key.startswith('unseen') and row['finetuned_micro_accuracy']:
    return ''
  if value is None:
    return 'diverged' if row['diverged'] else 'not run'
  note = '*' if row['diverged'] else ''
  spread = '' if value[1] is None else f'{join}{value[1]:.1f}'
  return f'{value[0]:.1f}{spread}{note}'


def _kinds(table: list[dict[str, Any]]) -> tuple[str, ...]:
  """Kinds of figures that a table has."""
  unseen = any(row['unseen_micro_accuracy'] for row in table)
  return (*_KINDS, 'unseen') if unseen else _KINDS


def _notes(table: list[dict[str, Any]]) -> list[str]:
  """What a reader should know of the methods of a table, each sentence once."""
  said = [f'{row["method"]}: {note}' for row in table for note in row['notes']]
  return list(dict.fromkeys(said))


def markdown(table: list[dict[str, Any]]) -> str:
  """The table as Markdown."""
  kinds = _kinds(table)
  heads = [f'{kind} {_HEADINGS[c]}' for kind in kinds for c in _COLUMNS]
  lines = [
    '| method | ' + ' | '.join(heads) + ' | ARI | s/round |',
    '|---' * (len(heads) + 3) + '|',
  ]
  for row in table:
    cells = [_cell(row, f'{k}_{c}', ' ± ') for k in kinds for c in _COLUMNS]
    ari = '' if row['ari'] is None else f'{row["ari"][0]:.2f}'
    seconds = row['seconds_per_round']
    seconds = '' if seconds is None else f'{seconds:.3g}'
    lines.append(
      f'| {in_markdown(row["method"])} | ' + ' | '.join([*cells, ari, seconds]) + ' |'
    )
  if any(0 < row['diverged'] < row['seeds'] for row in table):
    lines.append('\n\\* without the seeds that diverged.')
  if untested := max(row['untested'] for row in table):
    lines.append(f'\n{untested} clients without test examples are left out.')
  lines += [f'\n{in_markdown(note)}' for note in _notes(table)]
  return '\n'.join(lines) + '\n'


def latex(table: list[dict[str, Any]]) -> str:
  """The fine-tuned columns as a LaTeX tabular, like Tables 2 and 3."""
  heads = ' & '.join(_HEADINGS[c].replace('m', 'M', 1) for c in _COLUMNS)
  lines = [
    r'\begin{tabular}{lcccc}',
    r'\hline',
    rf'Method & {heads} \\',
    r'\hline',
  ]
  for row in table:
    cells = ' & '.join(_cell(row, f'finetuned_{c}', r'$\pm$') for c in _COLUMNS)
    lines.append(rf'{in_latex(row["method"])} & {cells} \\')
  notes = [rf'\par {{\footnotesize {in_latex(note)}}}' for note in _notes(table)]
  return '\n'.join([*lines, r'\hline', r'\end{tabular}', *notes]) + '\n'


def comma_separated(table: list[dict[str, Any]]) -> str:
  """The table as CSV: means and standard deviations in columns of their own."""
  out = io.StringIO()
  writer = csv.writer(out, lineterminator='\n')
  keys = [f'{kind}_{column}' for kind in _kinds(table) for column in _COLUMNS]
  heads = [f'{key}_{part}' for key in keys for part in ('mean', 'std')]
  writer.writerow(
    ['method', 'seeds', 'diverged', *heads, 'ari', 'seconds_per_round',
     'clients_without_test_examples', 'notes']
  )  # fmt: skip
  for row in table:
    cells = [v for key in keys for v in (row[key] or ('', ''))]
    ari = '' if row['ari'] is None else row['ari'][0]
    writer.writerow(
        [shown(row['method'], 255), row['seeds'], row['diverged'], *cells, ari,
         row['seconds_per_round'], row['untested'], ' '.join(row['notes'])]
    )  # fmt: skip
  return out.getvalue()


def plain(table: list[dict[str, Any]]) -> str:
  """The table for a terminal: accuracies and F1, fine-tuned and deployed."""
  names = [shown(row['method'], 255) for row in table]
  width = max(16, *map(len, names))
  lines = [
    ' ' * width + f'{"fine-tuned":^48}{"deployed":^48}'.rstrip(),
    f'{"method":{width}}'
    + ''.join(f'{_HEADINGS[c]:>11} ' for _ in _KINDS for c in _COLUMNS)
    + f'{"ARI":>6}{"s/round":>10}',
  ]
  for name, row in zip(names, table, strict=True):
    cells = [_cell(row, f'{k}_{c}', '±') for k in _KINDS for c in _COLUMNS]
    ari = '' if row['ari'] is None else f'{row["ari"][0]:.2f}'
    seconds = row['seconds_per_round']
    seconds = '' if seconds is None else f'{seconds:.3f}'
    lines.append(
      f'{name:{width}}'
      + ''.join(f'{cell:>11} ' for cell in cells)
      + f'{ari:>6}{seconds:>10}'
    )
  return '\n'.join(lines + [shown(note, 2000) for note in _notes(table)])


def draw(folders: dict[str, list[pathlib.Path]], workdir: pathlib.Path) -> str | None:
  """Draws each finished run and, of each method's first seed, the convergence."""
  try:
    from fesem_jax import plots
  except UserError as e:  # Figures are optional, the table is not.
    return str(e)
  runs = [plots.Run(finished[0]) for finished in folders.values() if finished]
  for run in runs:
    plots.draw_run(run)
  if runs:
    plots.save(plots.convergence(runs), workdir / 'plots' / 'convergence')
  return None


def run_unless_diverged(
  config: dict[str, Any], folder: pathlib.Path, what: str, programs: Programs
) -> dict[str, Any] | None:
  """The summary of a run announced as `what`; None if it diverged."""
  say = lambda text: print(f'[{what}] {text}')
  machine = experiment_flags.machine()
  try:
    return experiment.run(config, machine, folder, say=say, programs=programs).summary
  except Diverged as e:
    print(f'{what} diverged: {e}')
    return None


def tuned(
  table: dict[str, list[dict[str, Any]]],
  name: str,
  values: list[Any],
  workdir: pathlib.Path,
) -> dict[str, list[dict[str, Any]]]:
  """The table with each method's best value of a flag, on validation examples.

  Rows that set the flag themselves, and methods that cannot run, stay as they are. The
  figures behind each choice are written to WORKDIR/tune.json.
  """
  if not any(name in configs[0] for configs in table.values()):
    raise UserError(f'--tune={name}: none of --algorithms has this option.')
  chosen: dict[str, Any] = {}
  for label, configs in table.items():
    scores: dict[str, float | None] = {}

    def score(config: dict[str, Any], label=label, scores=scores) -> float:
      value = config[name]
      folder = workdir / 'tune' / label / f'{name}={value}'
      what = f'{label}, {name}={value}'
      summary = run_unless_diverged(config, folder, what, Programs())
      found = None if summary is None else summary['finetuned']['micro_accuracy']
      scores[str(value)] = found
      return -np.inf if found is None else found

    if f'{name}=' in label:
      continue
    try:
      table = table | {label: search(configs, name, values, score)}
    except UserError as e:
      print(f'{label} cannot be tuned: {e}')
      continue
    if scores:
      best = table[label][0][name]
      if all(s is None for s in scores.values()):
        print(f'{label}: diverged with every {name}; {best} is kept.')
      else:
        print(f'{label}: {name}={best}, by fine-tuned micro accuracy on validation.')
      chosen[label] = {'chosen': best, 'validation_micro_accuracy': scores}
  write_atomically(workdir / 'tune.json', json.dumps({name: chosen}, indent=1) + '\n')
  return table


def write_table(table: list[dict[str, Any]], workdir: pathlib.Path) -> None:
  """Writes table.md, table.csv and table.tex."""
  write_atomically(workdir / 'table.md', markdown(table))
  write_atomically(workdir / 'table.csv', comma_separated(table))
  write_atomically(workdir / 'table.tex', latex(table))


def main(argv: list[str]) -> None:
  experiment.no_positional(argv)
  f = flags.FLAGS
  if f.num_seeds < 1:
    raise UserError(f'--num_seeds={f.num_seeds} must be at least 1.')
  sharding.setup_devices(f.num_devices)
  workdir = pathlib.Path(f.workdir)
  table = configurations(f.algorithms, f.num_seeds, experiment_flags.chosen_options())
  searched = parse_search(f.tune) if f.tune else None
  with locked(workdir):
    if searched is not None:
      table = tuned(table, *searched, workdir)
    run_all(table, workdir)


def run_all(table: dict[str, list[dict[str, Any]]], workdir: pathlib.Path) -> None:
  """Runs what is missing of a table, then writes, prints and draws it."""
  summaries: Summaries = {label: [] for label in table}
  folders: dict[str, list[pathlib.Path]] = {label: [] for label in table}
  refused: dict[str, UserError] = {}
  for label, configs in table.items():
    programs = Programs()  # All seeds of a method run in the same compiled programs.
    for config in configs:
      folder = workdir / label / f'seed{config["seed"]}'
      what = f'{label}, seed {config["seed"]}'
      try:
        summaries[label].append(run_unless_diverged(config, folder, what, programs))
      except UserError as e:  # The other methods go on.
        refused[label] = e
        print(f'{what} cannot run: {shown(e, 2000)}')
        break
      if summaries[label][-1] is not None:
        folders[label].append(folder)
    if any(summaries.values()):
      write_table(rows(summaries), workdir)
  if len(refused) == len(table):
    raise next(iter(refused.values()))
  finished = rows(summaries)
  print()
  print(plain(finished))
  print(f'\nTable: {workdir}/table.md, .csv, .tex')
  no_figures = draw(folders, workdir)
  print(no_figures or f'Figures: {workdir}/plots and, of each first seed, its plots/')
  if refused:
    why = ' '.join(f'{label}: {e}' for label, e in refused.items())
    raise UserError(f'Not all methods ran. {why}')


if __name__ == '__main__':
  experiment_flags.define()
  flags.adopt_module_key_flags(experiment_flags)
  flags.DEFINE_list(
      'algorithms', ['non_fed', 'fed_avg', 'fesem(4)'],
      'Methods, NAME, NAME(K) or NAME(K;FLAG=VALUE;...), of '
      f'{", ".join(algorithms.METHODS)}.',
  )  # fmt: skip
  flags.DEFINE_integer(
    'num_seeds', 5, 'Seeds --seed, --seed + 1, ...', upper_bound=10_000
  )
  flags.DEFINE_string(
    'tune',
    '',
    'FLAG:VALUE,VALUE, e.g. learning_rate:0.01,0.03,0.1: for each method the value '
    'that is best on validation examples held out of the training split, with the '
    'first seed.',
  )
  flags.DEFINE_string('workdir', 'runs/compare', 'Folder of all runs and the table.')
  experiment.start(main)
