"""A comparison of methods: the frames of its runs, and the table that shows them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fesem_jax.analysis import tables
from fesem_jax.analysis.tuning import Choice
from fesem_jax.run.results.frames import Frames
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.text_tables import Table

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
  """The result of a comparison of methods; `print` shows its table.

  Attributes:
    frames: of the runs, e.g. of `load_runs`.
    refused: label of each method that could not run -> why.
    reference: label of the method that others are compared with; '' takes that with
      the best deployed metric.
    oracle: label of the method that is told the true groups; '' finds it.
    report: which metrics are shown: of the 'last' round, of the 'best' one, or
      'mean10', of the last ten evaluations. `dataclasses.replace` shows others.
    columns: groups of columns, of `tables.COLUMNS`; () is all but 'finetuned'.
    correct: how p values are corrected, of `paired.CORRECTIONS`.
    tuned: settings that were tuned, which the table shows.
    choices: label of each method that was tuned -> its `Choice`.
    caption: of the LaTeX table; '' says what the numbers are.
  """

  frames: Frames
  refused: Mapping[str, UserError] = dataclasses.field(default_factory=dict)
  reference: str = ''
  oracle: str = ''
  report: str = 'last'
  columns: Sequence[str] = ()
  correct: str = 'none'
  tuned: Sequence[str] = ()
  choices: Mapping[str, Choice] = dataclasses.field(default_factory=dict)
  caption: str = ''

  @property
  def runs(self) -> 'DataFrame':
    """A row a run: method, seed, metrics and settings."""
    return self.frames.runs

  @property
  def rounds(self) -> 'DataFrame':
    """A row a run, round and metric."""
    return self.frames.rounds

  @property
  def clients(self) -> 'DataFrame':
    """A row a run and client."""
    return self.frames.clients

  @property
  def table(self) -> Table:
    """Metrics over seeds, differences, clients that gain, costs and settings.

    CSV has every column and metric. Raises `UserError` on an unknown column or method.
    """
    return tables.table_of(self)

  @property
  def differences(self) -> 'DataFrame':
    """Each method minus the reference; see `tables.differences`."""
    runs = tables.reported(self.runs, self.report)
    return tables.differences(runs, '', self.reference, self.correct)

  def check(self) -> None:
    """Raises `UserError` if some of the methods could not run."""
    if self.refused:
      raise UserError('; '.join(f'{label}: {e}' for label, e in self.refused.items()))

  def __str__(self) -> str:
    refused = [f'{label} cannot run: {e}' for label, e in self.refused.items()]
    return '\n\n'.join([str(self.table), *refused])

  def _repr_html_(self) -> str:
    return self.table._repr_html_()
