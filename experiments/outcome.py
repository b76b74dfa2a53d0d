"""The outcome of a run in a few lines of text."""

from collections.abc import Mapping
from typing import Any

from fesem_jax import tasks
from fesem_jax.run.results import costs, curves
from fesem_jax.run.results.result import Result
from fesem_jax.tasks import Task
from fesem_jax.utils.display import printable

Summary = Mapping[str, Any]


def text(result: Result, which: str = 'last') -> str:
  """Outcome of a run: its figures, its cost and how it ended.

  `which`, one of `curves.REPORTS`, says what figures are shown.
  """
  summary = curves.as_reported(result.summary, which)
  task = tasks.of(summary)
  lines = _figures(summary, task)
  measured_on, figure = summary.get('evaluated_on', 'test'), task.primary
  on_validation = ', on validation examples' * (measured_on != 'test')
  lines.append(f'Metrics are {curves.REPORTS[which]}{on_validation}.')
  of = ' of honest clients' * bool(summary.get('honest'))
  reached = summary.get('rounds_to_target', [])
  lines += [_rounds_to(each, figure, of) for each in reached]
  if best := summary.get('best_round'):
    value = best['deployed'][task.primary_column]
    lines.append(
      f'Best round on validation examples: {best["round"]}, with a deployed '
      f'micro-{figure.name}{of} of {figure.text(value)} on {measured_on} examples.'
    )
  if summary['clusters']:
    lines.append(_clusters(summary))
  return '\n'.join(lines + _remarks(summary) + _costs(summary))


def line(summary: Summary, seconds: float) -> str:
  """One of many runs: 'deployed micro-accuracy 97.4 %, fine-tuned 96.1 %, 2.1 s'."""
  task = tasks.of(summary)
  figure, column = task.primary, task.primary_column
  of_honest = summary.get('honest')
  deployed, finetuned = (
    f'{figure.factor * (of_honest or summary)[kind][column]:.{figure.digits}f}'
    f'{" %" if figure.percent else ""}'
    for kind in ('deployed', 'finetuned')
  )
  agreement = (of_honest or summary.get('clusters') or {}).get('ari')
  truth = '' if agreement is None else f', ARI {agreement:z.2f}'
  return (
    f'deployed micro-{figure.name} {deployed}, fine-tuned {finetuned}{truth}'
    f'{", of honest clients" * bool(of_honest)}, '
    f'{seconds:.1f} s'
  )


def _figures(summary: Summary, task: Task) -> list[str]:
  """A line for each kind of model, of all clients and of the honest ones."""
  columns = tasks.columns_of(task, tasks.own_metrics(task, [summary['deployed']]))
  width = max(16, 2 + max(map(len, columns)))
  lines = [' ' * 10 + ''.join(f'{c.replace("_", "-"):>{width}}' for c in columns)]

  def in_words(column: str, value: float) -> str:
    figure = task.figure(column)
    return f'{100 * value:.2f} %' if figure.percent else f'{value:.4f}'

  def add(scores: Summary) -> None:
    for kind in ('deployed', 'finetuned', 'unseen', 'server'):
      if (found := scores.get(kind)) is not None:
        names = [c for c in columns if c in found]
        values = ''.join(f'{in_words(c, found[c]):>{width}}' for c in names)
        lines.append(f'{kind:10}{values}')

  add(summary)
  if of_honest := summary.get('honest'):
    kept, of = of_honest['clients'], summary['num_clients']
    lines.append(f'of the {kept} honest clients of {of}:')
    add(of_honest)
  return lines


def _rounds_to(reached: Summary, figure: tasks.Figure, of: str) -> str:
  """'97 % micro-accuracy: deployed after 18.3 rounds, fine-tuned not reached'."""

  def in_words(rounds: float | None) -> str:
    return 'not reached' if rounds is None else f'after {rounds:.1f} rounds'

  return (
    f'{figure.target(reached["target"])} micro-{figure.name}{of}: deployed '
    f'{in_words(reached["deployed"])}, fine-tuned {in_words(reached["finetuned"])}'
  )


def _clusters(summary: Summary) -> str:
  """'clusters of 20, 20 clients; against the truth ARI ...; last move in round 3'."""
  clusters, of_honest = summary['clusters'], summary.get('honest')
  sizes = [size for size in clusters['sizes'] if size]
  line = f'clusters of {", ".join(map(str, sizes))} clients'
  if empty := len(clusters['sizes']) - len(sizes):
    line += f' and {empty} empty'
  if clusters['ari'] is not None:
    line += f'; against the truth {_agreement(clusters)}'
  if of_honest and of_honest.get('ari') is not None:
    line += f' (of honest clients {_agreement(of_honest)})'
  return line + f'; last move in round {clusters["rounds_to_stable"]}'


def _agreement(clusters: Summary) -> str:
  """'ARI 1.000, NMI 1.000, AMI 1.000'."""
  names = ('ari', 'nmi', 'ami')
  return ', '.join(f'{name.upper()} {clusters[name]:.3f}' for name in names)


def _remarks(summary: Summary) -> list[str]:
  """Clients that are not in the figures."""
  without = summary['clients_without_test_examples']
  return [f'{without} clients have no test examples and are omitted above'] * (
    without > 0
  )


def _costs(summary: Summary) -> list[str]:
  """Bytes, why the run ended early, and seconds."""
  lines = []
  if sent := costs.as_text(summary.get('costs') or {}):
    lines.append(sent)
  if (spent := summary.get('dp')) and spent['epsilon'] is not None:
    lines.append(f'epsilon {spent["epsilon"]:.3g} for delta {spent["delta"]:g}')
  if (success := summary.get('backdoor_success')) is not None:
    lines.append(f'backdoor: {100 * success:.1f} % of marked examples take its class')
  if (ended := summary.get('ended', 'finished')) != 'finished':
    lines.append(f'ended after round {summary["rounds"]}: {printable(ended, 200)}')
  timing = summary['timing']
  if timing['seconds_per_round'] is not None:
    lines.append(
      f'{summary["rounds"]} rounds, {timing["seconds_per_round"]:.3f} s a round, '
      f'{timing["client_steps_per_second"]:,.0f} client steps a second, '
      f'{timing["compile_seconds"]:.1f} s compiling'
    )
  return lines
