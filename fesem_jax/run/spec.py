"""Specification of a run, from the arguments of `simulate`."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.selection import Selection, counted
from fesem_jax.data.splits import Phase
from fesem_jax.run import programs
from fesem_jax.run.callbacks.callback import (
  Callback,
  Drift,
  Patience,
  Progress,
  Unseen,
)
from fesem_jax.run.callbacks.calls import check_callbacks
from fesem_jax.run.results.records import Record
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, Index, Seed


class Workdir(NamedTuple):
  """The folder of a run, and what is kept there.

  Attributes:
    path: where metrics, summary, checkpoints and figures go.
    checkpoint_every: rounds between checkpoints; 0 saves after the last only.
    resume: whether to continue the run that the folder holds.
    save_models: whether it gets the deployed models for `load_run`; None saves up to
      1 GiB.
    portrait: whether it gets what the figures of clients need.
  """

  path: str | os.PathLike[str]
  checkpoint_every: int = 10
  resume: bool = True
  save_models: bool | None = None
  portrait: bool = True


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Spec:
  """The arguments of `simulate`, each option by itself."""

  algorithm: Algorithm
  train: FederatedData
  test: FederatedData
  rounds: Count
  # Makes the algorithm of `values`; with them, its runs share compiled programs.
  make: Callable[..., Algorithm] | None = None
  values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  method: Hashable = None  # names what `make` does
  seed: Seed = 0
  clients_per_round: Index = 0
  selection: Selection | None = None  # of the clients of a round; None draws them alike
  eval_every: Index = 1
  eval_start: bool = False
  finetune_epochs: Index = 1
  # Training and test split of clients that take no part.
  unseen: tuple[FederatedData, FederatedData] | None = None
  later_phases: Sequence[Phase] = ()
  data_placement: str = 'auto'  # see `placement.chosen`
  patience: Index = 0  # 0 never stops early
  progress: bool = True
  workdir: pathlib.Path | None = None  # None writes nothing
  checkpoint_every: Index = 10
  resume: bool = True
  save_models: bool | None = None
  make_portrait: bool = True  # in a workdir
  # What a workdir must have in common with a run that continues it. None takes the
  # seed, and the values of the method, its options, the model and the optimizer.
  config: Record | None = None
  notes: Sequence[str] = ()  # sentences that the summary keeps
  callbacks: Sequence[Callback] = ()  # but for options
  ignore_checks: Sequence[str] = ()  # ids of rules

  @property
  def phases(self) -> list[Phase]:
    """The data of all rounds."""
    return [Phase(1, self.train, self.test), *self.later_phases]

  @property
  def wants_clients(self) -> bool:
    """True if a callback wants the report of each client."""
    return any(callback.wants_clients for callback in self.callbacks)

  @property
  def cohort_size(self) -> int:
    """The most clients of a round."""
    everyone = len(self.train.info.names)
    return min(self.clients_per_round or everyone, everyone)

  @property
  def sampling_rate(self) -> float:
    """The share of the clients that a round draws at random."""
    if self.selection is not None:  # Not at random, as amplification asks.
      return 1.0
    return self.cohort_size / len(self.train.info.names)


def spec_of(
  *,
  algorithm: Algorithm | Callable[..., Algorithm],
  train: FederatedData,
  test: FederatedData,
  rounds: int,
  clients_per_round: float | Selection = 0,
  workdir: str | os.PathLike[str] | Workdir | None = None,
  callbacks: Sequence[Callback] = (),
  values: Mapping[str, Any] | None = None,
  **numbers: Any,
) -> Spec:
  """Specification of a run by the arguments of `simulate` and `simulate_many`."""
  made: dict[str, Any] = {'algorithm': algorithm}
  if values is not None and not isinstance(algorithm, Algorithm):
    make = functools.partial(algorithm, **values)
    built = programs.once(('made', algorithm, repr(values)), make)
    made = {'algorithm': built, 'make': algorithm, 'values': dict(values)}
  _check_data('train', train)
  _check_data('test', test)
  count, selection = counted(clients_per_round, train.num_clients)
  local = getattr(made['algorithm'], 'local', None)
  return Spec(
    **made,
    train=train,
    test=test,
    rounds=rounds,
    clients_per_round=count,
    selection=selection,
    data_placement=getattr(local, 'data_placement', 'auto'),
    **_workdir_options(workdir),
    **_callback_options(callbacks),
    **numbers,
  )


def _check_data(name: str, split: FederatedData) -> None:
  right = isinstance(split, FederatedData)
  check(right, f'{name}: must be a FederatedData; got {type(split).__name__}')


def _workdir_options(
  workdir: str | os.PathLike[str] | Workdir | None,
) -> dict[str, Any]:
  if workdir is None:
    return {}
  if not isinstance(workdir, Workdir):
    workdir = Workdir(workdir)
  fields = workdir._asdict()
  path = pathlib.Path(fields.pop('path'))
  return {'workdir': path, 'make_portrait': fields.pop('portrait'), **fields}


# Options among the callbacks: field of a `Spec`, attribute.
_OPTIONS: dict[type[Callback], tuple[str, str]] = {
  Drift: ('later_phases', 'phases'),
  Patience: ('patience', 'rounds'),
  Progress: ('progress', 'shown'),
  Unseen: ('unseen', 'splits'),
}


def _callback_options(callbacks: Sequence[Callback]) -> dict[str, Any]:
  check_callbacks(callbacks)
  options: dict[str, Any] = {'callbacks': []}
  for callback in callbacks:
    if type(callback) not in _OPTIONS:
      options['callbacks'].append(callback)
      continue
    name, attribute = _OPTIONS[type(callback)]
    for split in callback.splits if isinstance(callback, Unseen) else ():
      _check_data('callbacks.Unseen', split)
    once = name not in options
    check(once, f'callbacks: has two {type(callback).__name__}; leave out one')
    options[name] = getattr(callback, attribute)
  return options
