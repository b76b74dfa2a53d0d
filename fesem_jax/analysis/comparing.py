"""Methods tuned and compared over seeds, on data in memory."""

import dataclasses
import inspect
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from absl import logging

from fesem_jax.analysis import clients_table, costs_table, tables, tuning
from fesem_jax.analysis.runs_of_methods import (
  Data,
  Outcome,
  arguments,
  check_seeds,
  given,
  outcomes_of,
  splits_of,
  tuning_runs,
)
from fesem_jax.analysis.tuning import Choice, Values, in_words
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.data import hold_out
from fesem_jax.evaluation import paired
from fesem_jax.evaluation.paired import Summaries
from fesem_jax.run.results import curves
from fesem_jax.run.results.records import Record
from fesem_jax.run.spec import Workdir
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import (
  UserError,
  check,
)
from fesem_jax.utils.text_tables import Table

# A method, or a function of hyperparameters that gives it.
Method = Algorithm | Callable[..., Algorithm]

_T = TypeVar('_T')


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The result of a comparison of methods; `print` shows it as text.

  Attributes:
    summaries: label of each method -> the summary of each seed, None for one that
      diverged; a method that could not run has fewer. Each has the deployed models'
      'curve', their first figure by round.
    rates: how the hyperparameters of each method were chosen, see `tuning.Row`.
    reference: label of the method that others are compared with; '' takes that with
      the best deployed figure, as micro accuracy.
    refused: label of each method that could not run -> why.
    report: which figures are shown, of `curves.REPORTS`: of the last round, of the best
      one, or the mean of the last ten evaluations. `dataclasses.replace` shows others.
    oracle: label of the method that is told the true groups; '' where there is none.
      Then the difference of each method to it is shown beside those to the reference.
    columns: that tables show, of `tables.COLUMNS`; () is all but 'finetuned'.
    metrics: that tables show, e.g. 'micro_accuracy'; () is all. Files of CSV and JSON
      have every column and metric.
    correct: how p values are corrected, of `paired.CORRECTIONS`.
  """

  summaries: Summaries
  rates: list[tuning.Row]
  reference: str = ''
  refused: dict[str, UserError] = dataclasses.field(default_factory=dict)
  report: str = 'last'
  oracle: str = ''
  columns: Sequence[str] = ()
  metrics: Sequence[str] = ()
  correct: str = 'none'

  @property
  def reported(self) -> Summaries:
    """The summaries with the figures that `report` names."""
    return {
      label: [None if s is None else curves.as_reported(s, self.report) for s in runs]
      for label, runs in self.summaries.items()
    }

  @property
  def rows(self) -> tables.Rows:
    """Means and standard deviations over seeds; see `tables.over_seeds`."""
    return tables.over_seeds(self.reported, self.report, self.oracle, self.correct)

  @property
  def differences(self) -> paired.Differences:
    """Each method minus the reference, paired over seeds; see `paired.differences`."""
    of_kinds = paired.differences(self.reported, self.reference, self.correct)
    return of_kinds | {'report': self.report}

  @property
  def gaps(self) -> paired.Differences | None:
    """Each method minus the oracle, paired over seeds; None without an oracle."""
    if not self.oracle:
      return None
    of_kinds = paired.differences(self.reported, self.oracle, self.correct)
    return of_kinds | {'report': self.report}

  @property
  def gains(self) -> list[dict[str, Any]]:
    """Clients that gain and lose against FedAvg; see `clients_table.rows`."""
    base = 'fed_avg'
    if base not in self.summaries:
      base = costs_table.label_of(self.summaries, base)
    return clients_table.rows(self.summaries, base, self.oracle) if base else []

  @property
  def tables(self) -> list[Table]:
    """The figures of methods, then differences, costs, and rates."""
    rows, differences, gaps = self.rows, self.differences, self.gaps
    kinds = [k for k in paired.KINDS if k in (self.columns or ('deployed',))]
    shown = [
      tables.scores(rows, self.columns, self.metrics),
      *paired.tables(differences, kinds),
    ]
    if gaps is not None and gaps['reference'] != differences['reference']:
      shown += paired.tables(gaps, kinds)
    shown.append(costs_table.of_methods(rows))
    if (moved := clients_table.table(self.gains)) is not None:
      shown.append(moved)
    if self.rates:
      shown.append(tuning.table(self.rates))
    return shown

  def as_markdown(self) -> str:
    """Figures, differences, costs and how values were chosen."""
    return '\n'.join(table.as_markdown() for table in self.tables)

  def write(self, workdir: pathlib.Path) -> None:
    """Writes table.md, .csv, .tex and .json into an existing folder."""
    rows, shown = self.rows, self.tables
    beside = tables.whole(rows).beside(costs_table.of_methods(rows))
    done = [s for each in self.summaries.values() for s in each if s and 'seed' in s]
    whole = {
      'report': self.report,
      'seeds': sorted({s['seed'] for s in done}),
      'correct': self.correct,
      'methods': rows,
      'differences': self.differences,
      'rates': self.rates,
      **({'gaps': self.gaps} if self.oracle else {}),
      'gains': self.gains,
    }
    for name, text in {
      'table.md': self.as_markdown(),
      'table.csv': beside.as_csv(),
      'table.tex': '\n'.join(t.as_latex() for t in shown),
      'table.json': json.dumps(whole, indent=1) + '\n',
    }.items():
      write_atomically(workdir / name, text)

  def check(self) -> None:
    """Raises `UserError` if some of the methods could not run."""
    if self.refused and len(self.refused) == len(self.summaries):
      raise next(iter(self.refused.values()))
    if self.refused:
      why = ' '.join(f'{label}: {e}' for label, e in self.refused.items())
      raise UserError(f'Not all methods ran. {why}')

  def __str__(self) -> str:
    return '\n\n'.join([*map(str, self.tables), *self._not_run()])

  def _repr_markdown_(self) -> str:
    return '\n\n'.join([self.as_markdown(), *self._not_run()])

  def _not_run(self) -> list[str]:
    return [f'{label} cannot run: {e}' for label, e in self.refused.items()]


def run_each(
  by_label: Mapping[str, Sequence[_T]],
  run: Callable[[str], Sequence[Outcome]],
  refuse: Callable[[str, _T, UserError], None],
  after: Callable[[Summaries], None],
) -> tuple[Summaries, dict[str, UserError]]:
  """Runs methods one after the other; one that cannot run does not stop the others.

  `by_label` has what to run of each method, e.g. seeds, and `run` gives the outcome of
  each of these. `refuse` is called for a method that cannot run, `after` with all
  summaries after each method, if there are any. Returns the summaries, None for a run
  that diverged, and why methods could not run.
  """
  summaries: Summaries = {label: [] for label in by_label}
  refused: dict[str, UserError] = {}
  for label, each in by_label.items():
    try:
      outcomes = run(label)
    except UserError as e:
      outcomes = [e]
    for one, outcome in zip(each, outcomes, strict=False):
      if isinstance(outcome, UserError):
        refused[label] = outcome
        refuse(label, one, outcome)
        break
      summaries[label].append(outcome)
    if any(summaries.values()):
      after(summaries)
  return summaries, refused


def _check_methods(methods: Any) -> None:
  """Raises `UserError` unless methods have labels, and are or give an `Algorithm`."""
  for label, method in methods.items():
    if isinstance(method, Algorithm):
      continue
    makes = callable(method) and 'local' not in inspect.signature(method).parameters
    check(makes, f'methods: {label} is no Algorithm or function of hyperparameters')


def compare(
  methods: Mapping[str, Method],
  data: Data,
  *,
  rounds: int,
  seeds: Sequence[int] = range(5),
  choices: Mapping[str, Choice] | None = None,
  reference: str = '',
  oracle: str = '',
  workdir: str | os.PathLike[str] | Workdir | None = None,
  **options: Any,
) -> Comparison:
  """Runs methods with several seeds.

  Args:
    methods: label of each method -> an `Algorithm`, or a function that gives it and
      takes the hyperparameters that `choices` has for it as keyword arguments.
    data: training and test split, or a function of the seed that gives both.
    rounds: of each run.
    seeds: of the runs; methods are compared seed by seed.
    choices: see `tune`.
    reference: label of the method that others are compared with; by default that with
      the best deployed figure of the task.
    oracle: label of the oracle among `methods`; '' where there is none.
    workdir: gets the tables and, in LABEL/seedN, the runs; the same call goes on where
      it stopped. See `simulate`.
    **options: further ones of `simulate_many`, e.g. `runs_at_once`, and of `simulate`.

  Returns:
    `Comparison`. A method that cannot run is in `refused`, a run that diverged has no
    summary, and the others go on.

  Raises:
    UserError: on a reference, choice or seeds that do not fit, or if no method can run.
  """
  chosen = dict(choices or {})
  _check_methods(methods)
  check_seeds(seeds)
  paired.check_reference(reference, list(methods))
  check(not oracle or oracle in methods, f'oracle: {oracle!r} is none of methods')
  for label, choice in chosen.items():
    tunable = label in methods and not isinstance(methods[label], Algorithm)
    check(tunable, f'choices: {label} is no function in methods')
    shared = sorted(set(choice.seeds) & set(seeds))
    check(not shared, f'seeds: {label} was tuned with {shared}; choose others')
  if workdir is not None and not isinstance(workdir, Workdir):
    workdir = Workdir(workdir)
  folder = None if workdir is None else pathlib.Path(workdir.path)
  rates = [
    tuning.row(label, c.values if (c := chosen.get(label)) else {}, c)
    for label in methods
  ]

  def of_run(label: str, seed: int) -> dict[str, Workdir]:
    if workdir is None:
      return {}
    path = pathlib.Path(workdir.path) / label / f'seed{seed}'
    return {'workdir': workdir._replace(path=path)}

  def run(label: str) -> list[Outcome]:
    method, choice = methods[label], chosen.get(label)
    values = choice.values if choice is not None else {}
    built = method if isinstance(method, Algorithm) else method(**values)
    runs = [arguments(built, splits_of(data, s), s) | of_run(label, s) for s in seeds]
    return outcomes_of(runs, {'rounds': rounds} | options)

  def after(summaries: Summaries) -> None:
    if folder is not None:
      Comparison(summaries, rates, reference, oracle=oracle).write(folder)

  def refuse(label: str, seed: int, error: UserError) -> None:
    logging.warning('%s, seed %d, cannot run: %s', label, seed, error)

  by_label = dict.fromkeys(methods, seeds)
  summaries, refused = run_each(by_label, run, refuse, after)
  comparison = Comparison(summaries, rates, reference, refused, oracle=oracle)
  if len(comparison.refused) == len(methods):
    comparison.check()
  return comparison


def tune(
  methods: Mapping[str, Callable[..., Algorithm]],
  data: Data,
  grid: Mapping[str, Sequence[Any]],
  *,
  rounds: int,
  seeds: Sequence[int] = range(10_000, 10_003),
  by: str = 'deployed',
  **options: Any,
) -> dict[str, Choice]:
  """Chooses hyperparameters of methods on a part of their clients' training examples.

  Every combination of the values runs with every seed on 80 % of each client's training
  examples and is measured on the others (`data.hold_out`); test examples of that seed
  are not looked at. If `data` divides the same examples anew for each seed, tuning sees
  test examples of the reported seeds. The best mean over seeds is chosen.

  Args:
    methods: label of each method -> a function of hyperparameters, by the names of
      `grid`, that gives the method; it is tuned over those that it takes.
    data: see `compare`.
    grid: name of each hyperparameter -> its values.
    rounds: of each run.
    seeds: of the runs; they must differ from those to be reported.
    by: models whose first metric decides, as micro accuracy: the
      'deployed' or the 'finetuned' ones; others are not fine-tuned.
    **options: further ones of `simulate_many`, e.g. `runs_at_once`, and of `simulate`.

  Returns:
    Label of each method that takes some of the hyperparameters -> `tuning.Choice`, for
    `compare`. Warnings name values that a method cannot run with.

  Raises:
    UserError: on a hyperparameter that no method takes, or a method that can run with
      none of the values.
  """
  _check_methods(methods)
  check_seeds(seeds)
  for name in grid:
    used = any(_takes(make, name) for make in methods.values())
    check(used, f'grid: no method takes {name}; leave it out')
  choices = {}
  splits = {seed: hold_out(splits_of(data, seed)[0], seed) for seed in seeds}
  for label, make in methods.items():
    tries = tuning.points({n: v for n, v in grid.items() if _takes(make, n)})
    if not tries:
      continue
    outcomes = tuning_runs(make, tries, seeds, splits, {'rounds': rounds} | options, by)

    def run(values: Values, seed: int, outcomes=outcomes) -> Record | None:
      return given(outcomes[tuning.in_words(values), seed])

    choices[label] = tuning.search(tries, list(seeds), run, by)
    for point, reason in choices[label].refused:
      logging.warning('%s cannot run with %s: %s', label, in_words(point), reason)
  return choices


def _takes(make: Callable[..., Algorithm], name: str) -> bool:
  """True if a function takes a keyword argument."""
  parameters = inspect.signature(make).parameters
  any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
  return any_name or name in parameters
