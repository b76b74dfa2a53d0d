r"""Accuracy of the honest clients by the share of bad ones, for several methods.

  python -m experiments.corruption --corrupt=sign_flip --num_seeds=3 \
      --algorithms='fed_avg,fed_avg(aggregation=median)' \
      --corrupt_fractions=0,0.1,0.2,0.3,0.4 --dataset=digits --workdir=runs/bad

Runs the comparison of experiments.compare for each share, with the same seeds; the bad
clients of a smaller share are among those of a larger one. WORKDIR gets a folder for
each share, with the runs and a table, and corruption.{md,csv,json} and
plots/corruption.{png,svg} of them all: micro accuracy over the honest clients, of the
deployed and of the fine-tuned models. The same command again runs only what is missing.
"""

import csv
import io
import json
import pathlib
from typing import Any

from absl import flags

from experiments import compare, tables
from experiments import flags as experiment_flags
from experiments.run import check_numbers, load_data
from experiments.start import no_positional, start
from fesem_jax import algorithms, data, sharding
from fesem_jax.atomic import write_atomically
from fesem_jax.corruption import KINDS, corrupted
from fesem_jax.display import in_markdown, shown
from fesem_jax.errors import UserError
from fesem_jax.workdir import locked

_KINDS = {'deployed': 'Deployed', 'finetuned': 'Fine-tuned'}

# What a method came to at one share: its label, the share, 'seeds', how many
# 'diverged', the mean 'ari' over honest clients, and '{kind}_{column}', (mean, standard
# deviation) in percent or None.
Point = dict[str, Any]


def parse_fractions(listed: list[str]) -> list[float]:
  """The shares of bad clients, in increasing order.

  Raises:
    UserError: unless they are distinct numbers in [0, 1).
  """
  try:
    fractions = sorted(map(float, listed))
  except ValueError:
    fractions = []
  sound = all(0 <= f < 1 for f in fractions) and len(set(fractions)) == len(fractions)
  if not fractions or not sound:
    given = shown(','.join(listed))
    raise UserError(
      f'--corrupt_fractions={given} must be distinct numbers in [0, 1), such as '
      '0,0.1,0.2.'
    )
  return fractions


def with_fraction(
  by_label: dict[str, list[dict[str, Any]]], corrupt: str, fraction: float
) -> dict[str, list[dict[str, Any]]]:
  """The configurations of a comparison at one share of bad clients."""
  kind = corrupt if fraction else 'none'
  chosen = {'corrupt': kind, 'corrupt_fraction': fraction}
  return {label: [c | chosen for c in each] for label, each in by_label.items()}


def check_fractions(config: dict[str, Any], corrupt: str, shares: list[float]) -> None:
  """Raises `UserError` if the clients of a configuration cannot be shared out so."""
  check_numbers(config)
  train, test = load_data(config, flags.FLAGS.data_dir)
  if fraction := config['unseen_fraction']:
    (train, _), _ = data.hold_out_clients(train, test, fraction, config['seed'])
  for share in filter(None, shares):
    corrupted(train, corrupt, share, config['seed'])


def points_of(fraction: float, summaries: tables.Summaries) -> list[Point]:
  """What each method came to at one share; where all are honest, all count."""
  found = []
  for label, runs in summaries.items():
    done = [s for s in runs if s is not None]
    honest = [s.get('honest', s) for s in done]
    aris = [
      s['honest'].get('ari') if 'honest' in s else (s['clusters'] or {}).get('ari')
      for s in done
    ]
    known = [a for a in aris if a is not None]
    point: Point = {'method': label, 'corrupt_fraction': fraction, 'seeds': len(runs)}
    point['diverged'] = len(runs) - len(done)
    point['ari'] = sum(known) / len(known) if known else None
    for kind in _KINDS:
      for column in tables.COLUMNS:
        values = [h[kind][column] for h in honest]
        point[f'{kind}_{column}'] = tables.mean_and_std(values) if values else None
    found.append(point)
  return found


def _cell(point: Point, key: str, join: str) -> str:
  """A figure as text, with a star where some seeds diverged."""
  if point[key] is None:
    return 'diverged' if point['diverged'] else 'not run'
  mean, std = point[key]
  spread = '' if std is None else f'{join}{std:.1f}'
  return f'{mean:.1f}{spread}' + ('*' if point['diverged'] else '')


def as_markdown(points: list[Point], corrupt: str) -> str:
  """A table for each kind of figures: methods by shares."""
  shares = sorted({p['corrupt_fraction'] for p in points})
  methods = dict.fromkeys(p['method'] for p in points)
  at = {(p['method'], p['corrupt_fraction']): p for p in points}
  lines = []
  for kind, name in _KINDS.items():
    lines += [
      f'{name}: micro accuracy of honest clients, in percent, by the share of bad ones '
      f'({in_markdown(corrupt)})',
      '',
      '| method | ' + ' | '.join(f'{100 * s:g} %' for s in shares) + ' |',
      '|---' * (len(shares) + 1) + '|',
    ]
    for method in methods:
      cells = [_cell(at[method, s], f'{kind}_micro_accuracy', ' ± ') for s in shares]
      lines.append(f'| {in_markdown(method)} | ' + ' | '.join(cells) + ' |')
    lines.append('')
  if any(0 < p['diverged'] < p['seeds'] for p in points):
    lines += ['\\* without the seeds that diverged.', '']
  return '\n'.join(lines)


def as_csv(points: list[Point]) -> str:
  """A line for each method and share, with all figures."""
  keys = [f'{kind}_{column}' for kind in _KINDS for column in tables.COLUMNS]
  first = ['method', 'corrupt_fraction', 'seeds', 'diverged', 'ari']
  out = io.StringIO()
  writer = csv.writer(out, lineterminator='\n')
  writer.writerow(first + [f'{key}_{part}' for key in keys for part in ('mean', 'std')])
  for p in points:
    figures = [v for key in keys for v in (p[key] or ('', ''))]
    writer.writerow([shown(p['method'], 255), *(p[n] for n in first[1:]), *figures])
  return out.getvalue()


def draw(points: list[Point], corrupt: str, workdir: pathlib.Path) -> str | None:
  """Draws the curves; returns why not, where there is no Matplotlib."""
  try:
    from fesem_jax import plots
  except UserError as e:  # Figures are optional, the table is not.
    return str(e)
  panels: dict[str, dict[str, list[Any]]] = {}
  for kind, name in _KINDS.items():
    curves = panels.setdefault(name, {})
    for p in points:
      curve = curves.setdefault(p['method'], [])
      if (figure := p[f'{kind}_micro_accuracy']) is not None:
        curve.append((p['corrupt_fraction'], *figure))
  figure = plots.accuracy_by_bad_clients(panels, corrupt)
  plots.save(figure, workdir / 'plots' / 'corruption')
  return None


def write(points: list[Point], corrupt: str, workdir: pathlib.Path) -> None:
  """Writes corruption.md, .csv and .json."""
  write_atomically(workdir / 'corruption.md', as_markdown(points, corrupt))
  write_atomically(workdir / 'corruption.csv', as_csv(points))
  whole = {'corrupt': corrupt, 'points': points}
  write_atomically(workdir / 'corruption.json', json.dumps(whole, indent=1) + '\n')


def run_all(
  by_label: dict[str, list[dict[str, Any]]],
  corrupt: str,
  fractions: list[float],
  workdir: pathlib.Path,
) -> None:
  """Runs what is missing for every share, then writes, prints and draws the curves.

  Raises:
    UserError: at the end, if some of the methods could not run.
  """
  points: list[Point] = []
  finished = []
  for fraction in fractions:
    print(f'{100 * fraction:g} % bad clients:')
    folder = workdir / f'fraction{fraction:g}'
    chosen = with_fraction(by_label, corrupt, fraction)
    finished.append(compare.run_methods(chosen, folder))
    points += points_of(fraction, finished[-1].summaries)
    write(points, corrupt, workdir)
  print()
  print(as_markdown(points, corrupt))
  print(f'Table: {workdir}/corruption.md, .csv, .json')
  no_figures = draw(points, corrupt, workdir)
  print(no_figures or f'Figure: {workdir}/plots/corruption.png, .svg')
  for each in finished:
    each.check()


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  if f.num_seeds < 1:
    raise UserError(f'--num_seeds={f.num_seeds} must be at least 1.')
  if f.corrupt == 'none':
    raise UserError(f'--corrupt must say what bad clients do: {", ".join(KINDS[1:])}.')
  if f['corrupt_fraction'].present:
    raise UserError('--corrupt_fraction: list shares in --corrupt_fractions instead.')
  fractions = parse_fractions(f.corrupt_fractions)
  sharding.setup_devices(f.num_devices)
  by_label = compare.configurations(
    f.algorithms, f.num_seeds, experiment_flags.chosen_options()
  )
  for config in next(iter(by_label.values()))[:1]:
    check_fractions(config, f.corrupt, fractions)
  workdir = pathlib.Path(f.workdir)
  with locked(workdir):
    run_all(by_label, f.corrupt, fractions, workdir)


if __name__ == '__main__':
  experiment_flags.define()
  flags.adopt_module_key_flags(experiment_flags)
  flags.FLAGS.set_default('corrupt', 'sign_flip')
  flags.DEFINE_list(
    'algorithms',
    [
      'fed_avg',
      'fed_avg(aggregation=median)',
      'fed_avg(aggregation=trimmed_mean;beta=0.4)',
      'fed_avg(aggregation=norm_bound)',
      'fed_avg(aggregation=krum;beta=0.4)',
    ],
    'Methods, NAME, NAME(K) or NAME(K;FLAG=VALUE;...), of '
    f'{", ".join(algorithms.METHODS)}, or MODULE:FUNCTION for a method of your own.',
  )
  flags.DEFINE_list(
    'corrupt_fractions',
    ['0', '0.1', '0.2', '0.3', '0.4'],
    'Shares of bad clients, each a comparison of its own; they do what --corrupt says.',
  )
  flags.DEFINE_integer(
    'num_seeds', 3, 'Seeds --seed, --seed + 1, ...', upper_bound=10_000
  )
  flags.DEFINE_string(
    'workdir', 'runs/corruption', 'Folder of all runs, the tables and the figure.'
  )
  start(main)
