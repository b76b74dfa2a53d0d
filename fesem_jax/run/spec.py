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
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.results.records import Record
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, Index, Seed


class Workdir(NamedTuple):
  """The folder of a run, and what is kept there.

  Attributes:
    path: where metrics, summary, checkpoints and models go.
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
  """The arguments of `simulate`, those of `Workdir`, and those of the binaries."""

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
  unseen: tuple[FederatedData, FederatedData] | None = None
  later_phases: Sequence[Phase] = ()
  patience: Index = 0
  progress: bool = True
  workdir: pathlib.Path | None = None  # None writes nothing
  checkpoint_every: Index = 10
  resume: bool = True
  save_models: bool | None = None
  make_portrait: bool = True  # in a workdir
  # What a workdir must have in common with a run that continues it. None takes the
  # seed, and the values of the method, its options, the model and the optimizer.
  config: Record | None = None
  callbacks: Sequence[Callback] = ()
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
  def sampling_rate(self) -> float:
    """The share of the clients that a round draws at random."""
    # Selected ones are not drawn at random, as amplification asks.
    count = 0 if self.selection is not None else self.clients_per_round
    return min(1.0, count / len(self.train.info.names)) or 1.0


def spec_of(
  *,
  algorithm: Any,
  train: FederatedData,
  test: FederatedData,
  clients_per_round: float | Selection = 0,
  workdir: str | os.PathLike[str] | Workdir | None = None,
  values: Mapping[str, Any] | None = None,
  **options: Any,
) -> Spec:
  """Specification of a run by the arguments of `simulate` and `simulate_many`."""
  if values is not None and not isinstance(algorithm, Algorithm):
    options |= {'make': algorithm, 'values': dict(values)}
    make = functools.partial(algorithm, **values)
    algorithm = programs.once(('made', algorithm, repr(values)), make)
  unseen = [('unseen', split) for split in options.get('unseen') or ()]
  for name, split in [('train', train), ('test', test), *unseen]:
    right = isinstance(split, FederatedData)
    check(right, f'{name}: must be a FederatedData; got {type(split).__name__}')
  if workdir is not None:
    folder = workdir if isinstance(workdir, Workdir) else Workdir(workdir)
    path, *kept = folder
    names = 'checkpoint_every', 'resume', 'save_models', 'make_portrait'
    options |= {'workdir': pathlib.Path(path), **dict(zip(names, kept, strict=True))}
  count, selection = counted(clients_per_round, train.num_clients)
  options |= {'clients_per_round': count, 'selection': selection}
  return Spec(algorithm=algorithm, train=train, test=test, **options)
