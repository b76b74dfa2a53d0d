"""Two runs compared client by client."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fesem_jax.evaluation.paired import paired_difference
from fesem_jax.run.results.client_table import ClientTable, table_text
from fesem_jax.tasks import TASKS
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import check_choice

if TYPE_CHECKING:
  from fesem_jax.run.results.result import Result
  from fesem_jax.run.results.saved_run import Run

# Of which less is better; of any other, as a metric of the model's own, more is.
_LESS_IS_BETTER = {
  figure.name
  for task in TASKS.values()
  for figure in task.figures
  if not figure.higher_is_better
}


class ClientComparison(NamedTuple):
  """A figure of each client in two runs, in the order of the first run's clients.

  `print` shows the mean difference and the clients, from those that lose most to those
  that gain most. Lower is better for RMSE, the loss of a regression and perplexity;
  higher is better for the other metrics of tasks. Of a model's own metric it is not
  known: `gain` are the clients that have more of it.

  Attributes:
    figure: which one, a column of `ClientTable`.
    names: [M] strings.
    a: [M] float64 the figure in the first run, NaN for clients without test examples
      and for those that are bad in a run, as all that follow.
    b: [M] float64 the figure in the second run.
    difference: [M] float64 a - b.
    mean: of the differences that are finite, all weighed alike.
    low: lower end of Student's 95 % interval of that mean, paired by client; None where
      it is of a single client.
    high: upper end of the interval.
    of_honest: True if some clients are bad, whom figures leave out.
  """

  figure: str
  names: np.ndarray
  a: np.ndarray
  b: np.ndarray
  difference: np.ndarray
  mean: float
  low: float | None
  high: float | None
  of_honest: bool = False

  @property
  def gain(self) -> np.ndarray:
    """Names of the clients whose figure is better in the first run."""
    return self.names[self._better > 0]

  @property
  def lose(self) -> np.ndarray:
    """Names of the clients whose figure is worse in the first run."""
    return self.names[self._better < 0]

  @property
  def _better(self) -> np.ndarray:
    """[M] float64 by how much the figure is better in the first run."""
    less = self.figure.partition('_')[2] in _LESS_IS_BETTER
    return -self.difference if less else self.difference

  def __repr__(self) -> str:
    interval = ''
    if self.low is not None:
      interval = f', 95 % interval {self.low:+.4f} to {self.high:+.4f}'
    compared, infinite = ~np.isnan(self.difference), np.isinf(self.difference).sum()
    honest = ' of honest clients' * self.of_honest
    known = any(
      self.figure.partition('_')[2] == figure.name
      for task in TASKS.values()
      for figure in task.figures
    )
    more, less = ('gain', 'lose') if known else ('have more', 'less')
    counts = f'{len(self.gain)} clients {more}, {len(self.lose)} {less}'
    counts += f', {(self.difference == 0).sum()} stay'
    if left_out := len(self.names) - compared.sum():
      counts += f', {left_out} are left out'
    if infinite:
      counts += f'; infinite differences that are not in the mean: {infinite}'
    order = np.argsort(self._better, kind='stable')  # NaN last.
    order = order[: compared.sum()]
    columns = {'names': self.names, 'a': self.a, 'b': self.b, 'a - b': self.difference}
    return (
      f'{self.figure}{honest}, a - b: mean {self.mean:+.4f}{interval}; {counts}\n'
      + table_text({name: column[order] for name, column in columns.items()})
    )


def compare_clients(
  a: 'Result | Run | ClientTable',
  b: 'Result | Run | ClientTable',
  figure: str = '',
) -> ClientComparison:
  """Compares a figure of two runs, client by client.

  The interval is that of the mean over clients like these, at the models of these two
  runs. Clients of a run share models, so a comparison of methods needs several
  seeds.

  Args:
    a: a run, or its table of clients.
    b: another run of the same clients on the same data, in any order.
    figure: a column of figures: 'deployed_NAME' or 'finetuned_NAME' of a figure of the
      task, such as 'deployed_f1', or of a metric of the model's own. '' is the first
      one, as 'deployed_accuracy' or 'deployed_rmse'.

  Raises:
    UserError: if the runs have other clients or other data, or lack the figure.
  """
  ours, theirs = _table(a), _table(b)
  figures = [f for f in _figures(ours) if f in _figures(theirs)]
  figure = figure or figures[0]
  check_choice('figure', figure, tuple(figures))
  _check_data(a, b)
  places = _places(ours.names, theirs.names)
  x, y = (np.asarray(t.columns()[figure], np.float64) for t in (ours, theirs))
  honest = ours.counted & theirs.counted[places]
  x, y = (np.where(honest, own, np.nan) for own in (x, y[places]))
  with np.errstate(invalid='ignore'):  # Both may be infinite.
    difference = x - y
  kept = np.isfinite(difference)
  check(kept.any(), f'figure: no client has {figure} in both runs')
  # P would be of repeats of the run, not of its clients.
  mean, low, high, _ = paired_difference(x[kept].tolist(), y[kept].tolist())
  return ClientComparison(
    figure, ours.names, x, y, difference, mean, low, high, not honest.all()
  )


def _table(run: 'Result | Run | ClientTable') -> ClientTable:
  return run if isinstance(run, ClientTable) else run.clients


def _figures(table: ClientTable) -> list[str]:
  return [n for n in table.columns() if n.startswith(('deployed_', 'finetuned_'))]


def _check_data(a: object, b: object) -> None:
  """Raises `UserError` if two workdirs say that their runs had other data."""
  digests = [(getattr(run, 'config', None) or {}).get('data_digest') for run in (a, b)]
  is_same = None in digests or digests[0] == digests[1]
  check(is_same, 'data_digest: differs between the runs; compare runs of the same data')


def _places(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
  """[M] where the second run has each client of the first."""
  if np.array_equal(ours, theirs):
    return np.arange(len(ours))
  only = sorted(set(ours.tolist()) ^ set(theirs.tolist()))
  check(not only, f'clients: {only[:1]} is in only one of the runs')
  is_unique = len(set(ours.tolist())) == len(ours) == len(theirs)
  check(is_unique, 'clients: several have the same name; give each a unique one')
  order = np.argsort(theirs)
  return order[np.searchsorted(theirs[order], ours)]
