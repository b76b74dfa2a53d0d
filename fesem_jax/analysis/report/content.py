"""The content of a page: tables in HTML, figures in SVG, and Altair's charts."""

import io
import pathlib
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pandas as pd
import vl_convert
from markupsafe import Markup
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.analysis.comparison import Comparison
from fesem_jax.analysis.report import charts
from fesem_jax.plots.clients import client_points
from fesem_jax.plots.figures import clustered_runs, figures_of_methods, figures_of_run
from fesem_jax.plots.style import STYLE
from fesem_jax.run.results.files import read_portrait
from fesem_jax.run.results.frames import Frames
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.display import printable, text_of
from fesem_jax.utils.errors import check

# Columns of the table of runs -> their heads.
_RUNS = {
  'method': 'method', 'seed': 'seed', 'status': 'status', 'rounds': 'rounds',
  'num_clients': 'clients', 'timing.compile_seconds': 's compiling',
  'timing.seconds_per_round': 's/round', 'timing.total_seconds': 's in all',
  'folder': 'folder',
}  # fmt: skip
_SETTINGS = ('config.', 'versions.', 'device.', 'commit')
# Figures of a run that the page shows, of so many methods with clusters.
_FIGURES, _DRAWN = ('clusters', 'classes', 'sheets'), 2


def content(comparison: Comparison) -> dict[str, Any]:
  """The values of the template."""
  frames, runs = comparison.frames, comparison.runs
  several = runs['task'].dropna().unique() if 'task' in runs else []
  check(len(several) < 2, f'workdirs: runs are of several tasks, {", ".join(several)}')
  done = runs['status'].str.match('finished|ended')
  count = f'{len(runs)} run{"s" * (len(runs) > 1)}'
  first = _runs(frames, runs.drop_duplicates('method')['run'])
  points = _clients(first)
  splits = ', '.join(runs.get('config.evaluate_on', pd.Series(['test'])).unique())
  specs = {'curves': charts.curves(frames.rounds)} if len(frames.rounds) else {}
  specs |= {'clients': charts.clients(points)} if len(points) else {}
  table = comparison.table if done.any() else None
  with pd.option_context('display.max_colwidth', 255):
    return {
      'title': printable(_title(runs), 120),
      'what': f'{count}, {done.sum()} finished, measured on {splits} examples',
      'table': Markup(table.to_html()) if table else '',
      'notes': table.notes if table else ['No run has finished.'],
      'specs': specs,
      'figures': list(_figures(comparison, first)),
      'runs': _html(runs.reindex(columns=list(_RUNS)).rename(columns=_RUNS)),
      'settings': [_html(table) for table in _settings(runs)],
      'library': Markup(library()),
    }


def _runs(frames: Frames, names: Any) -> Frames:
  return Frames(*(frame[frame['run'].isin(names)] for frame in frames))


def _title(runs: pd.DataFrame) -> str:
  """'digits: 3 methods, 2 seeds'."""
  first, methods, seeds = runs.iloc[0], runs['method'].nunique(), runs['seed'].nunique()
  subject = f'{methods} methods' if methods > 1 else first['method']
  suffix = f', {seeds} seeds' if seeds > 1 else f', seed {first["seed"]}'
  return f'{first.get("config.dataset") or "runs"}: {subject}{suffix}'


def _clients(first: Frames) -> pd.DataFrame:
  """Clients of the first runs, with their places on the map of local models."""
  parts, folders = [], first.runs.set_index('run')['folder']
  for run, rows in first.clients.groupby('run', sort=False):
    portrait = read_portrait(pathlib.Path(folders[run]))
    if len(portrait.get('coordinates', ())) > 2:
      points = client_points(portrait).set_index(rows.index[portrait['sampled']])
      names = points.columns.intersection(['x', 'y', 'true_cluster'])
      rows = rows.drop(columns='true_cluster', errors='ignore').join(points[names])
    parts.append(rows)
  return pd.concat(parts) if parts else first.clients


def _figures(comparison: Comparison, first: Frames) -> Iterator[tuple[str, Markup]]:
  """Titles and SVG of the figures that stand still; 'classes' are alike for methods."""
  if draw := figures_of_methods(comparison).get('differences'):
    yield 'differences', _svg(draw())
  shown, clustered = set(_FIGURES), clustered_runs(first)[:_DRAWN]
  for run in clustered or [_runs(first, first.runs['run'][:1])]:
    for name, draw in figures_of_run(run).items():
      if name in shown:
        yield f'{name}, {run.runs["run"].iloc[0]}', _svg(draw())
    shown -= {'classes'}


def _svg(figure: Figure) -> Markup:
  """A figure as SVG in the colors of the page."""
  file = io.StringIO()
  with plt.rc_context(STYLE | {'svg.fonttype': 'none'}):
    figure.savefig(file, format='svg', transparent=True, metadata={'Date': None})
  plt.close(figure)
  text = file.getvalue().replace('#000000', 'currentColor')
  return Markup(text[text.index('<svg') :])


def _settings(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
  """Settings, versions and devices: those in which methods differ, those in common."""
  columns = [c for c in runs if c.startswith(_SETTINGS) and c != 'config.seed']
  settings = runs[columns].astype(object).where(runs[columns].notna(), '')
  texts = settings.map(text_of).rename(columns=lambda c: c.removeprefix('config.'))
  by_method = texts.groupby(runs['method'], observed=True)
  values = by_method.agg(lambda group: ', '.join(dict.fromkeys(group))).T
  values = values.rename_axis(index='setting', columns=None)
  common = (texts.nunique() == 1).reindex(values.index)
  same = values[common].iloc[:, :1].set_axis(['value'], axis=1)
  return values[~common].reset_index(), same.reset_index()


def _html(table: pd.DataFrame) -> Markup:
  return Markup(
    table.to_html(index=False, border=0, na_rep='', float_format='{:.4g}'.format)
  )


def library() -> str:
  """Vega, Vega-Lite and Vega-Embed as one script, cached as it takes seconds."""
  version = metadata.version('vl-convert-python')
  path = pathlib.Path.home() / '.cache' / 'fesem_jax' / f'vega_{version}.js'
  path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
  if not path.exists():
    with progress_lines.waiting_for('building the figure library'):
      text = vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')
    write_atomically(path, text.replace('</script', '<\\/script'))
  return path.read_text(encoding='utf-8')
