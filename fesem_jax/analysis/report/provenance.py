"""Provenance of a page's runs: flags, software and machines; and their costs."""

from collections.abc import Sequence
from typing import Any

from fesem_jax.analysis.report import markup
from fesem_jax.analysis.report.runs import ReportedRun, labels
from fesem_jax.run.results.costs import in_words
from fesem_jax.utils.display import in_bytes, in_markdown, text_of

# Rows of the table of runs that are shown at once; the rest is folded away.
_MANY = 12

# Heading of each cost -> where summaries hold it.
_COSTS = {
  's/round': ('timing', 'seconds_per_round'),
  's compiling': ('timing', 'compile_seconds'),
  's in all': ('timing', 'total_seconds'),
  'client steps/s': ('timing', 'client_steps_per_second'),
  'host memory': ('memory', 'peak_host_bytes'),
  'device memory': ('memory', 'peak_device_bytes'),
  'sent up': ('costs', 'bytes_up'),
  'sent down': ('costs', 'bytes_down'),
  'start up': ('start', 'bytes_up'),
  'start down': ('start', 'bytes_down'),
  'simulated s': ('costs', 'simulated_seconds'),
}


def what_ran(runs: Sequence[ReportedRun]) -> str:
  """The runs and their flags as HTML."""
  rows = [_row(run) for run in runs]
  head = ['method', 'seed', 'rounds', 'clients', 'data', 'device', 'folder']
  table = _folded(markup.table(head, rows, 'Runs'), f'{len(rows)} runs', len(rows))
  return '\n'.join([table, _software(runs), _flags(runs)])


def _row(run: ReportedRun) -> list[Any]:
  summary = run.summary or {}
  names = [run.config.get(n, summary.get(n)) for n in ('dataset', 'partition')]
  device = summary.get('device') or {}
  kind = device.get('kind') or device.get('platform')
  return [
    run.label,
    run.seed,
    run.status,
    summary.get('num_clients'),
    ', '.join(str(name) for name in names if name),
    f'{device.get("count", 1)} x {kind}' if kind else None,
    run.folder,
  ]


def _software(runs: Sequence[ReportedRun]) -> str:
  """Commits and versions, each set of them once."""
  counts: dict[str, int] = {}
  for run in runs:
    if run.summary is None:
      continue
    held = run.summary.get('versions') or {}
    versions = ', '.join(f'{name} {v}' for name, v in held.items() if v)
    commit = run.summary.get('commit')
    text = f'commit {commit}; {versions}' if commit else versions
    counts[text] = counts.get(text, 0) + 1
  parts = [
    f'<p>{markup.escaped(text, 1000)}{f" ({_runs(n)})" if len(counts) > 1 else ""}</p>'
    for text, n in counts.items()
    if text
  ]
  return '\n'.join(parts)


def _flags(runs: Sequence[ReportedRun]) -> str:
  """Flags in common, and those in which the methods differ."""
  by_label = {
    label: [r.config for r in runs if r.label == label] for label in labels(runs)
  }
  names = sorted({name for run in runs for name in run.config} - {'seed'})
  common: list[str] = []
  differing: list[str] = []
  for name in names:
    values = {text_of(run.config.get(name, '')) for run in runs}
    (common if len(values) == 1 else differing).append(name)
  parts = []
  if differing:
    rows = [
      [name, *(_values(configs, name) for configs in by_label.values())]
      for name in differing
    ]
    head = ['flag', *map(in_markdown, by_label)]
    table = markup.table(head, rows, 'Flags that differ')
    parts.append(_details(f'Flags that differ ({len(differing)})', table))
  if common:
    rows = [[name, text_of(runs[0].config.get(name, ''))] for name in common]
    table = markup.table(['flag', 'value'], rows, 'Flags of all runs')
    parts.append(_details(f'Flags of all runs ({len(common)})', table))
  return '\n'.join(parts)


def _values(configs: Sequence[dict[str, Any]], name: str) -> str:
  """The values of a flag over the seeds of a method, each once."""
  values = dict.fromkeys(text_of(c[name]) if name in c else '' for c in configs)
  shown = list(values)[:5]
  return ' / '.join(shown) + (' / ...' if len(values) > len(shown) else '')


def costs(runs: Sequence[ReportedRun]) -> str:
  """Seconds, memory and bytes of the finished runs as HTML; '' if there are none."""
  done = [run for run in runs if run.summary is not None]
  values = [[_cost(run, *of) for of in _COSTS.values()] for run in done]
  known = [i for i in range(len(_COSTS)) if any(row[i] for row in values)]
  rows = [
    [run.label, run.seed, *(row[i] for i in known)]
    for run, row in zip(done, values, strict=True)
  ]
  head = ['method', 'seed', *(list(_COSTS)[i] for i in known)]
  return _folded(markup.table(head, rows, 'Costs'), f'{len(rows)} runs', len(rows))


def _cost(run: ReportedRun, section: str, name: str) -> str | None:
  """An entry of the summary as text; None where it lacks it."""
  held = run.summary or {}
  if section == 'start':  # Before the first round; `costs` counts it too.
    held = held.get('costs') or {}
  value = (held.get(section) or {}).get(name)
  if value is None:
    return None
  if section in ('costs', 'start') and 'bytes' in name:
    return in_words(value)  # As the run and the table count them.
  if 'bytes' in name:
    return in_bytes(value)
  return f'{value:,.0f}' if value >= 100 else f'{value:.{1 if value >= 1 else 3}f}'


def _runs(count: int) -> str:
  return f'{count} run{"s" * (count > 1)}'


def _folded(table: str, title: str, rows: int) -> str:
  return _details(title, table) if rows > _MANY else table


def _details(title: str, inside: str) -> str:
  return f'<details><summary>{title}</summary>\n{inside}</details>'
