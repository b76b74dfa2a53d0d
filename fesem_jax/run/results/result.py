"""The result of a run, in memory or read from its workdir."""

import dataclasses
import functools
import pathlib
import pickle
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Model, Params
from fesem_jax.models import builders
from fesem_jax.models.starting import whole_model
from fesem_jax.run.results import client_table, files, records, saved_models
from fesem_jax.run.results.deployed_models import DeployedModels, Examples, fetched
from fesem_jax.run.results.frames import (
  Frames,
  Recorded,
  joined,
  method_label,
  rounds_of,
)
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import check_choice

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


class FinishedRun:
  """Members of runs, whether they are in memory or read from a workdir."""

  clients: 'DataFrame'
  summary: Record
  history: list[Record]
  deployed: Any  # `DeployedModels`

  def __repr__(self) -> str:
    return records.text(self.summary)

  def _repr_html_(self) -> str:
    frame: Any = self.clients
    return f'<pre>{escape(repr(self))}</pre>{frame._repr_html_()}'

  @property
  def rounds(self) -> 'DataFrame':
    """A row a round and metric: `round`, `metric` and `value`; see `load_runs`."""
    return rounds_of(self.history)

  @property
  def frames(self) -> Frames:
    """The frames `runs`, `rounds` and `clients` of the run; see `load_runs`."""
    config = getattr(self, 'config', {})
    label = method_label(config or self.summary) or 'run'
    run = Recorded.of(self, label, self.summary.get('seed', 0), config)
    return joined([run])

  @property
  def centers(self) -> Params:
    """[R, ...] the global model or the centers; see `DeployedModels.centers`."""
    return self.deployed.centers

  def params(self, **which: Any) -> Params:
    """One model, of a `client` or a `cluster`; see `DeployedModels.params`."""
    return self.deployed.params(**which)

  def predict(self, x: Any, **options: Any) -> np.ndarray:
    """Labels of examples, or probabilities; see `DeployedModels.predict`."""
    return self.deployed.predict(x, **options)

  def save_model(self, path: str | pathlib.Path, **which: Any) -> None:
    """Writes one model to a file; see `DeployedModels.save_model`."""
    self.deployed.save_model(path, **which)

  def to_torch(self, **which: Any) -> dict[str, np.ndarray]:
    """One model as PyTorch's `state_dict`; see `DeployedModels.to_torch`."""
    return self.deployed.to_torch(**which)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Result(FinishedRun):
  """A finished run.

  Clients are in the order of the training split passed to `simulate`, except in
  `state` and `arranged`. It can be pickled, after which it has no `arranged`.

  Attributes:
    clients: frame of metrics of each client, the content of `clients.csv`.
    summary: the content of `summary.json`.
    history: one record per round, the content of `metrics.jsonl`.
    draw: () -> the portrait of the clients, see `portrait`.
    model: of every client.
    state: the algorithm's final state. Its rows are clients in the order of `arranged`.
    arranged: the training split as it was arranged for the devices.
    places: [M] position in `state` and `arranged` of the user's clients.
    deploy: () -> the models that clients deploy, as arranged, where the state keeps
      them.
  """

  clients: 'DataFrame'
  summary: Record
  history: list[Record]
  draw: Callable[[], dict[str, np.ndarray]]
  model: Model
  state: Any
  arranged: FederatedData
  places: np.ndarray
  deploy: Callable[[], ClientModels]

  @functools.cached_property
  def portrait(self) -> dict[str, np.ndarray]:
    """Values for figures of clients, with local models where there are clusters.

    With several processes, access it, and `models`, in every process.
    """
    return self.draw()

  @functools.cached_property
  def models(self) -> ClientModels:
    """The models that the M clients deploy, on the host."""
    return fetched(self.deploy(), self.places)

  @functools.cached_property
  def deployed(self) -> DeployedModels:  # type: ignore[override]
    """The same by name: `deployed.predict(x, client='c3')`, `params`, `save_model`."""
    about = self.clients['client'].to_numpy(str), Examples.of(self.arranged)
    return DeployedModels.of(self.models, *about, self.model)

  def __getstate__(self) -> dict[str, Any]:
    """The state to pickle: arrays on the host, and the model if it can be."""
    model: Model | None = self.model
    try:
      pickle.dumps(model)
    except Exception:  # Functions of users raise all kinds.
      model = None
    return {
      'clients': self.clients, 'summary': self.summary, 'history': self.history,
      'portrait': self.portrait, 'places': self.places, 'models': self.models,
      'state': processes.on_host(self.state), 'model': model, 'arranged': None,
      'deployed': dataclasses.replace(self.deployed, model=model),
    }  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run(FinishedRun):
  """A finished run that its workdir holds; for other attributes, see `Result`.

  Attributes:
    workdir: folder of the run.
    config: the content of `config.json`, which identifies it.
    model: how its models compute; None to build what `config` names.
    which: the round of its models, 'last' or 'best'; all else is of the last.
  """

  workdir: pathlib.Path
  config: dict[str, Any]
  summary: dict[str, Any]
  history: list[dict[str, Any]]
  clients: 'DataFrame'
  model: Model | None = None
  which: str = 'last'

  @functools.cached_property
  def deployed(self) -> DeployedModels:
    """The models that clients deploy; raises `UserError` if they were not saved."""
    rounds, file = self.summary['rounds'], saved_models.LAST
    if self.which == 'best':
      rounds, file = self.summary['best_round']['round'], saved_models.BEST
    models = saved_models.read(self.workdir, rounds, file)
    check(models, f'{self.workdir}: has no models; run again with save_models=True')
    assert models is not None
    model, of, name = self.model, models.examples, str(self.config.get('model'))
    if model is None and name.partition('(')[0] in builders.NAMES:
      hidden = [int(width) for width in self.config.get('hidden', [])]
      model = builders.build(name, of.shape, of.num_classes, hidden, task=of.task)
    # Saved models have all layers.
    return dataclasses.replace(models, model=model and whole_model(model))


def load_run(
  workdir: str | pathlib.Path, model: Model | None = None, which: str = 'last'
) -> Run:
  """A finished run from its workdir, on any machine and without the data.

  Args:
    workdir: of `simulate` or `fesem-run`.
    model: how its models compute; only needed for `predict`, and not if `config.json`
      names one of this package's models.
    which: the round whose models it has: 'last', or 'best', that of
      `callbacks.BestRound` (`--stop_after`). All else is of the last round.

  Raises:
    UserError: if the folder holds no finished run, or a file of it is damaged; on
      'best', if no round is known to be best.
  """
  check_choice('which', which, ('last', 'best'))
  folder = pathlib.Path(workdir)
  config, summary = (
    files.read_object(folder / f'{name}.json') or {} for name in ('config', 'summary')
  )
  check(config, f'{folder}: holds no run; name the workdir of a finished run')
  check(summary, f'{folder}: the run is not finished; run the same command again')
  history = files.read_metrics(folder / 'metrics.jsonl', summary['rounds'])
  clients = client_table.read(folder)
  check(clients is not None, f'{folder}: has no clients.csv; run the command again')
  assert clients is not None
  has_round = which == 'last' or 'best_round' in summary
  check(has_round, f'which: {folder} has no best round; run with stop_after')
  return Run(folder, config, summary, history, clients, model, which)
