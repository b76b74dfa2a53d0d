"""How many clients of each method gain and lose against FedAvg."""

from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.analysis import tables
from fesem_jax.evaluation.paired import Summaries, clients_and_examples, task_of
from fesem_jax.run.results.client_table import ClientTable
from fesem_jax.run.results.records import Record
from fesem_jax.utils.text_tables import Column, Table, cell


def with_clients(summary: Record, clients: ClientTable | None) -> Record:
  """The summary of a run, with the figures of its clients that `table` compares.

  Bad clients are left out.
  """
  name = tasks.of(summary).primary.name
  own = None if clients is None else clients.columns().get(f'deployed_{name}')
  if clients is None or own is None:
    return summary
  kept = clients.counted
  of_clients = {'names': clients.names[kept].tolist(), 'deployed': own[kept].tolist()}
  return summary | {'of_clients': of_clients}


def rows(summaries: Summaries, base: str, oracle: str = '') -> list[dict[str, Any]]:
  """Clients that gain, lose and stay equal against the method `base`, by seed.

  Compares the first figure of the deployed models, client by client within a seed;
  clients without it are left out, and so are seeds whose clients differ. Returns for
  each other method its 'method', the 'seeds' that are compared 'of_seeds' that ran, and
  (mean, standard deviation) over them of 'gain', 'equal' and 'lose'. The row of `base`
  itself has in 'lose_always' the (seed, name) of clients that lose with every other
  method but the oracle; a seed that the summaries do not name is its place; and whom
  figures are 'of'.
  """
  better = task_of(summaries.values()).primary.better
  losing: dict[tuple[int, str], list[bool]] = {}
  by_method: list[dict[str, Any]] = []
  for label, runs in summaries.items():
    if label == base:
      continue
    counts = []
    for place, (mine, other) in enumerate(zip(runs, summaries[base], strict=False)):
      a, b = ((s or {}).get('of_clients') for s in (mine, other))
      if a is None or b is None or not np.array_equal(a['names'], b['names']):
        continue
      gain = better(1.0) * np.subtract(a['deployed'], b['deployed'])
      counts.append(
        [int((gain > 0).sum()), int((gain == 0).sum()), int((gain < 0).sum())]
      )
      if label != oracle:
        seed = (mine or {}).get('seed', place)
        for name, value in zip(a['names'], gain, strict=True):
          losing.setdefault((seed, str(name)), []).append(bool(value < 0))
    if counts:
      parts = dict(zip(('gain', 'equal', 'lose'), _spread(counts), strict=True))
      seeds = {'seeds': len(counts), 'of_seeds': len(runs)}
      by_method.append({'method': label, **seeds, **parts})
  always = [key for key, lost in losing.items() if all(lost)]
  of_base = {'method': base, 'lose_always': always}
  of_base['of'] = clients_and_examples(summaries)
  return [*by_method, of_base] if by_method else []


def _spread(counts: list[list[int]]) -> list[tuple[float, float | None]]:
  """(Mean, standard deviation) of each column of counts [N, 3]."""
  of_kinds = np.array(counts, float).T
  return [
    (float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else None) for x in of_kinds
  ]


def table(by_method: list[dict[str, Any]]) -> Table | None:
  """The table of `rows`; None without any."""
  if not by_method:
    return None
  *methods, base = by_method
  kinds = {'gain': 'gain', 'equal': 'are equal', 'lose': 'lose'}
  columns = [Column('method', 'method')]
  columns += [Column(k, head, '.1f', 'clients that', True) for k, head in kinds.items()]
  lines = [[row['method'], *(cell(row[kind]) for kind in kinds)] for row in methods]
  caption = (
    f'Clients whose deployed models of the last round are better, equal or worse than '
    f'with {base["method"]}, by the first metric{base["of"]}: means over seeds.'
  )
  notes = tables.fewer_seeds(methods)
  return Table(columns, lines, caption, notes=notes, label='clients')
