"""The one loop of comparisons, sweeps and tuning: methods, values, seeds."""

import contextlib
import itertools
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from fesem_jax.analysis import tuning
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.analysis.tuning import Choice, Outcome, Search, Values, in_words
from fesem_jax.checks import rules
from fesem_jax.run.configuration import check_same, digest_of_data
from fesem_jax.run.loop import begin_to_compile, run_many
from fesem_jax.run.results import files, records
from fesem_jax.run.results.frames import Recorded, joined, read, read_runs
from fesem_jax.run.results.result import Result
from fesem_jax.run.runner import Splits
from fesem_jax.run.spec import Spec
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import Diverged, UserError
from fesem_jax.utils.progress_lines import duration


class Planned(NamedTuple):
  """A run before it is carried out."""

  spec: Spec
  after: Callable[[Result], None] = lambda result: None  # adds to its files


class Entry(NamedTuple):
  """A method of a comparison.

  Attributes:
    plan: (values, seed, is_tuning) -> a run; raises `UserError` if it cannot run.
    points: of the grid that tuning tries; () tunes nothing.
  """

  plan: Callable[[Values, int, bool], Planned]
  points: Sequence[Values] = ()


def run_entries(
  entries: Mapping[str, Entry],
  seeds: Sequence[int],
  search: Search | None = None,
  *,
  folder: pathlib.Path | None = None,
  runs_at_once: int = 0,
  progress: bool = True,
  say: Callable[[str], None] | None = None,
  **shown: Any,
) -> Comparison:
  """Tunes and runs methods one after the other; one that fails leaves the others.

  Args:
    entries: label of each method -> how it runs.
    seeds: of the reported runs.
    search: seeds and metric of tuning.
    folder: of the comparison, METHOD/seedN. All runs in it are in the table, which is
      written at the end, also if it is interrupted.
    runs_at_once: see `simulate_many`; 0 lets tuning and reported runs share programs.
    progress: whether live progress is shown.
    say: prints a line for each run; without it, each rule warns once.
    **shown: attributes of the comparison.

  Raises:
    UserError: if no method can run.
  """
  earlier = read_runs(folder) if folder and folder.is_dir() else []
  refused, choices = dict[str, UserError](), dict[str, Choice]()
  shown |= {'refused': refused, 'choices': choices}
  shown |= {'tuned': tuple(search.grid) if search else ()}
  recorded = list[Recorded]()

  def compared() -> Comparison:
    folders = {run.folder for run in recorded} - {''}
    others = [run for run in earlier if run.folder not in folders]
    result = Comparison(joined([*recorded, *others], list(entries)), **shown)
    if folder and recorded:
      result.table.write(folder)
    if folder and choices:
      tuned = files.read_object(folder / 'tune.json') or {}
      tuned |= {label: choice.entry() for label, choice in choices.items()}
      write_atomically(folder / 'tune.json', json.dumps(tuned, indent=1) + '\n')
    return result

  total = len(entries) * len(seeds)
  total += sum(len(e.points) * len(search.seeds) for e in entries.values() if search)
  counter = _Counter(total, say)
  try:
    with progress_lines.shown(progress), rules.silenced():
      for label, like in _compiled_ahead(entries, seeds, search, runs_at_once):
        outcomes = _outcomes(
          label, entries[label], seeds, search, counter, runs_at_once, choices, like
        )
        error = next((run for run in outcomes if isinstance(run, UserError)), None)
        if error is not None:
          if str(error) not in map(str, refused.values()):  # Once, if it is of all.
            logging.warning('%s: cannot run: %s', label, error)
          refused[label] = error
        recorded += [run for run in outcomes if isinstance(run, Recorded)]
  finally:
    result = compared()
  if entries and len(refused) == len(entries):
    raise next(iter(refused.values()))
  return result


def _outcomes(
  label: str,
  entry: Entry,
  seeds: Sequence[int],
  search: Search | None,
  counter: '_Counter',
  runs_at_once: int,
  choices: dict[str, Choice],
  like: Sequence[Splits],
) -> list[Outcome]:
  """The outcomes of a method's reported runs; tuning adds to `choices` before."""
  try:
    at_once = len(seeds) if like else runs_at_once
    values: Values = {}
    if search and entry.points:
      choices[label] = _tuned(label, entry, search, counter, at_once, like)
      values = choices[label].values
    runs = [(values, seed) for seed in seeds]
    return _carried_out(False, label, entry, runs, counter, at_once, like)
  except UserError as e:
    return [e]


def _compiled_ahead(
  entries: Mapping[str, Entry],
  seeds: Sequence[int],
  search: Search | None,
  runs_at_once: int,
) -> Iterator[tuple[str, list[Splits]]]:
  """Each method, with the data of its runs if tuning and reported runs share programs.

  These are compiled while the method before runs.
  """

  def begin(label: str) -> tuple[str, list[Splits]]:
    entry, specs, finished = entries[label], list[Spec](), True
    if search and entry.points and not runs_at_once:
      runs = [(seed, False) for seed in seeds] + [(seed, True) for seed in search.seeds]
      for seed, is_tuning in runs if seeds else ():
        with contextlib.suppress(UserError):
          spec = entry.plan(entry.points[0], seed, is_tuning).spec
          specs.append(spec)
          finished &= bool(spec.workdir and (spec.workdir / 'summary.json').exists())
    like = list({id(s.train): (s.train, s.test) for s in specs}.values())
    if not finished:
      with contextlib.suppress(Exception):  # It comes again in the run.
        begin_to_compile(specs, len(seeds), like)
    return label, like

  methods = itertools.chain(map(begin, entries), [('', [])])
  for method, _ in itertools.pairwise(methods):  # Begins the next one before.
    yield method


def _tuned(label: str, entry: Entry, search: Search, *options: Any) -> Choice:
  """The best values of a method."""
  runs = [(values, seed) for values in entry.points for seed in search.seeds]
  outcomes = _carried_out(True, label, entry, runs, *options)
  count = len(search.seeds)
  by_point = [outcomes[i : i + count] for i in range(0, len(outcomes), count)]
  choice = tuning.choose(entry.points, by_point, search)
  for values, error in choice.refused:
    logging.warning('%s: cannot run with %s: %s', label, in_words(values), error)
  return choice


def _carried_out(
  is_tuning: bool,
  label: str,
  entry: Entry,
  runs: Sequence[tuple[Values, int]],
  counter: '_Counter',
  runs_at_once: int,
  like: Sequence[Splits],
) -> list[Outcome]:
  """The outcome of each run of a method; see `simulate_many`."""
  outcomes, planned = dict[int, Outcome](), list[tuple[int, Planned]]()

  def end(place: int, result: Outcome) -> None:
    values, seed = runs[place]
    what = f'{label}, {in_words(values)}' if is_tuning else label
    counter.add(f'{what}, seed {seed}', result, warns=not is_tuning)
    outcomes[place] = result

  for place, (values, seed) in enumerate(runs):
    try:
      plan = entry.plan(values, seed, is_tuning)
      workdir = plan.spec.workdir
      if is_tuning and workdir and _is_tuned(plan.spec):
        end(place, read(workdir, label))
      else:
        planned.append((place, plan))
    except UserError as e:
      end(place, e)

  def keep(number: int, result: Any) -> None:
    place, plan = planned[number]
    seed = runs[place][1]
    if isinstance(result, Diverged):
      if not is_tuning:
        logging.warning('%s, seed %d: diverged: %s', label, seed, result)
      result = None
    if not isinstance(result, UserError):
      spec = plan.spec
      if result is not None:
        plan.after(result)
        if spec.workdir:
          (spec.workdir / '.lock').unlink(missing_ok=True)  # Of a finished run.
        if spec.workdir and is_tuning:
          shutil.rmtree(spec.workdir / 'checkpoints', ignore_errors=True)
      config = dict(spec.values) if spec.config is None else spec.config
      workdir = '' if spec.workdir is None else str(spec.workdir)
      result = Recorded.of(result, label, seed, config, workdir)
    end(place, result)

  display = progress_lines.current.get() or progress_lines.Display()
  display.prefix = f'{counter.about(label)}: '
  run_many([plan.spec for _, plan in planned], runs_at_once, keep, like)
  display.prefix = ''
  return [outcomes[place] for place in range(len(runs))]


def _is_tuned(spec: Spec) -> bool:
  """True if the workdir of a tuning run, which keeps no checkpoint, has finished.

  Raises `WorkdirError` if it holds another run. One of fewer rounds is deleted.
  """
  assert spec.workdir is not None
  saved, summary = (
    files.read_object(spec.workdir / f'{name}.json') for name in ('config', 'summary')
  )
  if not saved or not summary:
    return False
  pairs = [(train, test) for _, train, test in spec.phases]
  pairs += [spec.unseen] if spec.unseen else []
  digest = digest_of_data(*(split for pair in pairs for split in pair))
  config = json.loads(json.dumps((spec.config or {}) | {'data_digest': digest}))
  check_same(spec.workdir, {n: x for n, x in saved.items() if n in config}, config)
  if saved.get('rounds', spec.rounds) != spec.rounds:
    shutil.rmtree(spec.workdir)
    return False
  return True


class _Counter:
  """Counts the runs of a command; `say` prints a line for each."""

  def __init__(self, total: int, say: Callable[[str], None] | None):
    self._total, self._done, self._say = total, 0, say
    self._began, self._warned = time.monotonic(), set[str]()

  def about(self, label: str) -> str:
    """The method that runs next, and the time until the last run ends."""
    text = f'{label}, {self._done} of {self._total} runs done'
    if self._done:
      mean = (time.monotonic() - self._began) / self._done
      text += f', {duration(mean * (self._total - self._done))} left'
    return text

  def add(self, title: str, run: Outcome, warns: bool) -> None:
    """Counts a run; `warns` of what rules found, once for each rule."""
    self._done += 1
    if isinstance(run, UserError):
      return
    if self._say:
      scores = records.scores(run.summary) if run.summary else 'diverged'
      self._say(f'[{self._done}/{self._total}] {title}: {scores}')
    for text in (run.summary or {}).get('checks', ()) if warns else ():
      name, _, message = text.partition(' ')
      if self._say or name not in self._warned:
        logging.warning('%s: %s %s', title, name, message)
      self._warned.add(name)
