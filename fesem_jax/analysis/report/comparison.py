"""The table of a page: methods over seeds, and their paired differences."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from fesem_jax.analysis import clients_table, costs_table, tables, tuning
from fesem_jax.analysis.comparing import Comparison
from fesem_jax.analysis.report import markup
from fesem_jax.analysis.report.runs import ReportedRun, labels
from fesem_jax.evaluation import paired
from fesem_jax.evaluation.paired import Summaries
from fesem_jax.run.results import metrics_file

_LACKING = 'Left out, as they did not finish or are missing:'


def compared(
  runs: Sequence[ReportedRun], reference: str = '', report: str = 'last'
) -> str:
  """The table and what `fesem-compare` writes below it, as HTML.

  All runs are of one task; for `reference` and `report` see `Comparison`. Raises
  `UserError` on a reference or a report that the runs do not have.
  """
  summaries = [
    (r.label, r.seed, clients_table.with_clients(r.summary, r.clients))
    for r in runs
    if r.summary
  ]
  finished: Summaries = {
    label: [s for own, _, s in summaries if own == label] for label in labels(runs)
  }
  finished = {label: each for label, each in finished.items() if each}
  paired.check_reference(reference, list(finished) or [''])
  if not finished:
    return '<p>No run has finished; the table appears when one finishes.</p>'
  oracle = costs_table.label_of(finished, 'oracle')
  rates = _rates(runs, list(finished))
  whole = Comparison(finished, rates, reference, report=report, oracle=oracle)
  # Pairs are of one seed, and some runs may be missing.
  seeds = list(dict.fromkeys(run.seed for run in runs))
  by_seed = {
    label: {seed: s for own, seed, s in summaries if own == label} for label in finished
  }
  aligned = {label: [each.get(s) for s in seeds] for label, each in by_seed.items()}
  pairs = dataclasses.replace(whole, summaries=aligned, rates=[])
  lacking = [
    label if seed is None else f'{label}, seed {seed}'
    for label in labels(runs)
    for i, seed in enumerate(seeds)
    if label not in aligned or aligned[label][i] is None
  ]
  rows = [a | {'best': b['best']} for a, b in zip(whole.rows, pairs.rows, strict=True)]
  parts = []
  if lacking:
    which = markup.escaped('; '.join(lacking), 500)
    parts.append(f'<p>{_LACKING} {which}.</p>')
  for table in (tables.scores(rows), *pairs.tables[1:]):
    parts.append(markup.from_markdown(table.as_markdown(), table.label))
  if whole.rates:
    how = markup.from_markdown(tuning.table(whole.rates).as_markdown(), 'Rates')
    parts.append(f'<div class="texts">{how}</div>')
  return '\n'.join(parts)


def _rates(runs: Sequence[ReportedRun], kept: Sequence[str]) -> list[dict[str, Any]]:
  """How the hyperparameters of the methods of a comparison were chosen."""
  rows: dict[str, dict[str, Any]] = {}
  for run in runs:
    path = run.folder.parent.parent / 'table.json'
    table = (metrics_file.read_object(path) or {}) if path.is_file() else {}
    rows |= {row['method']: row for row in table.get('rates', [])}
  return [rows[label] for label in kept if label in rows]
