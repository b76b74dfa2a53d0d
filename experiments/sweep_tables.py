"""Outcome of a sweep over the values of one flag: tables and a figure."""

import itertools
import json
import pathlib
from typing import Any

from fesem_jax import tasks
from fesem_jax.analysis import tables
from fesem_jax.evaluation.paired import OF_REPORTS, Summaries
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.display import listed_and_counted, method_name, text_of
from fesem_jax.utils.text_tables import Cell, Column, Table, cell

_KINDS = {'deployed': 'Deployed', 'finetuned': 'Fine-tuned'}

# What a method came to at one value: its label, the 'value', the 'task', 'seeds', how
# many 'diverged', whether some clients are bad ('honest':
# figures are of the others), 'ari', 'ami' and, in percent, '{kind}_{column}': (mean,
# standard deviation) or None.
Point = dict[str, Any]


def are_numbers(values: list[Any]) -> bool:
  """True if values have an order and places on an axis."""
  return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def points_of(value: Any, summaries: Summaries, report: str = 'last') -> list[Point]:
  """Outcome of each method at one value; where all are honest, all count.

  `value` is that of the flag; `report`, one of `curves.REPORTS`, says what the figures
  are.
  """
  points = []
  for label, runs in summaries.items():
    (row,) = tables.over_seeds({label: runs})
    honest = tables.has_honest([row])
    point: Point = {'method': label, 'value': value, 'honest': honest}
    point['report'] = report
    copied = (
      'seeds', 'diverged', 'evaluated_on', 'data_since', 'ended_early',
      'finetuning_failed',
    )  # fmt: skip
    point |= {name: row[name] for name in copied}
    for name in tables.AGREEMENTS:
      each = [(s.get('honest') or s['clusters'] or {}).get(name) for s in runs if s]
      known = [a for a in each if a is not None]
      point[name] = tables.mean_and_std(known, 1.0) if known else None
    point['task'] = row['task']
    for kind, column in itertools.product(_KINDS, tasks.of(row).columns):
      of = 'honest_' if honest else ''
      point[f'{kind}_{column}'] = row[f'{of}{kind}_{column}']
    points.append(point)
  return points


def _panels(points: list[Point]) -> dict[str, tuple[str, str]]:
  """Key of each figure that is shown -> its title and unit."""
  of = ', honest clients' if any(p['honest'] for p in points) else ''
  task = tasks.of(points[0])
  shown_ones = {
    f'{kind}_{task.primary_column}': (f'{name}{of}', task.primary.title)
    for kind, name in _KINDS.items()
  }
  for name in tables.AGREEMENTS:
    if any(p[name] for p in points):
      title = f'Agreement with the true clusters{of}'
      shown_ones[name] = title, name.upper()
  return shown_ones


def _by_method(points: list[Point]) -> dict[str, list[Point]]:
  """Label of each method -> its points, one for each value."""
  labels = dict.fromkeys(p['method'] for p in points)
  return {label: [p for p in points if p['method'] == label] for label in labels}


def _cell(point: Point, key: str) -> Cell:
  """A figure, with a star where some seeds diverged."""
  if point[key] is None:
    lacks = (
      key in tables.AGREEMENTS and point[f'deployed_{tasks.of(point).primary_column}']
    )
    why = 'diverged' if point['diverged'] else 'not run'
    return Cell(None, instead='' if lacks else why)
  return cell(point[key], after='*' * bool(point['diverged']))


def tables_of(points: list[Point], name: str) -> list[Table]:
  """A table for each kind of figures: methods by values."""
  values = list(dict.fromkeys(text_of(p['value']) for p in points))
  sentences = [*tables.seeds_note(points), *tables.reports_note(points)]
  notes = tables.diverged_note(points)
  of_figures = []
  for key, (title, unit) in _panels(points).items():
    digits = 2 if key in tables.AGREEMENTS else tasks.of(points[0]).primary.digits
    columns = [Column(v, v, f'z.{digits}f', name, True) for v in values]
    rows = [
      [method, *(_cell(point, key) for point in mine)]
      for method, mine in _by_method(points).items()
    ]
    caption = ' '.join([f'{title}: {unit} by {name}.', *sentences])
    columns.insert(0, Column('method', 'method'))
    of_figures.append(Table(columns, rows, caption, notes=notes, label=f'sweep-{key}'))
  return of_figures


def as_csv(points: list[Point]) -> str:
  """A line for each method and value, with all figures."""
  columns = tasks.of(points[0]).columns
  keys = [f'{kind}_{column}' for kind in _KINDS for column in columns]
  names = 'method', 'value', 'seeds', 'diverged', 'report', 'evaluated_on', 'clients'
  plain = [Column(name, name) for name in names]
  measured = [Column(key, key, '.3g', '', True) for key in (*tables.AGREEMENTS, *keys)]
  rows = [
    [
      p['method'], text_of(p['value']), p['seeds'], p['diverged'], p['report'],
      p['evaluated_on'] or 'test' * tables.has_figures(p),
      'honest' if p['honest'] else 'all',
      *(cell(p[c.key] or (None, None)) for c in measured),
    ]
    for p in points
  ]  # fmt: skip
  return Table([*plain, *measured], rows).as_csv()


def draw(
  points: list[Point], name: str, num_clients: int, workdir: pathlib.Path
) -> str | None:
  """Draws the curves; returns why not, where there is no Matplotlib."""
  try:
    from fesem_jax import plots
  except ImportError as e:  # Figures are optional, the table is not.
    return str(e)
  by_method = _by_method(points)
  panels = {
    title: {label: [p[key] for p in mine] for label, mine in by_method.items()}
    for key, title in _panels(points).items()
    if key != 'ami'  # Curves like those of ARI, which the table has.
  }
  values = [p['value'] for p in next(iter(by_method.values()))]
  texts, places = list(map(text_of, values)), None
  if are_numbers(values):
    places = values
    if name == 'clients_per_round':  # 0 means all.
      texts = [text if v else 'all' for text, v in zip(texts, values, strict=True)]
      places = [v or num_clients for v in values]
  figure = plots.by_value(panels, name, texts, places, _said(points))
  plots.save(figure, workdir / 'plots' / 'sweep')
  return None


def _said(points: list[Point]) -> list[str]:
  """Lines of a figure on the rounds, the examples and the seeds that it is of."""
  of = [OF_REPORTS[points[0]['report']].strip(' ,')]
  of += ['validation examples'] * any(p['evaluated_on'] for p in points)
  lacking = [
    f'{method_name(p["method"])} at {text_of(p["value"])}'
    for p in points
    if tables.lacks_seeds(p)
  ]
  diverged = f'without the seeds that diverged: {listed_and_counted(lacking, 5)}'
  return [', '.join(filter(None, of))] * any(of) + [diverged] * bool(lacking)


def write(points: list[Point], name: str, workdir: pathlib.Path) -> None:
  """Writes sweep.md, .tex, .csv and .json."""
  shown = tables_of(points, name)
  write_atomically(workdir / 'sweep.md', '\n'.join(t.as_markdown() for t in shown))
  write_atomically(workdir / 'sweep.tex', '\n'.join(t.as_latex() for t in shown))
  write_atomically(workdir / 'sweep.csv', as_csv(points))
  whole = {'by': name, 'points': points}
  write_atomically(workdir / 'sweep.json', json.dumps(whole, indent=1) + '\n')
