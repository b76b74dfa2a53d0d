"""The result of a run, with the order and the names of the input data."""

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
from fesem_jax.run.results import outcome
from fesem_jax.run.results.deployed_models import DeployedModels, Examples, fetched
from fesem_jax.run.results.frames import Frames, of_result, rounds_of
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


class FinishedRun:
  """Members of runs, whether they are in memory or read from a workdir."""

  clients: 'DataFrame'
  summary: Record
  history: list[Record]
  deployed: Any  # `DeployedModels`

  def __repr__(self) -> str:
    return outcome.text(self.summary)

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
    return of_result(self, getattr(self, 'config', None))

  @property
  def centers(self) -> Params:
    """[R, ...] the global model or the centers; see `DeployedModels.centers`."""
    return self.deployed.centers

  def params(self, *, client: str | None = None, cluster: int | None = None) -> Params:
    """One model; see `DeployedModels.params`."""
    return self.deployed.params(client=client, cluster=cluster)

  def predict(self, x: Any, **options: Any) -> np.ndarray:
    """Labels of examples, or probabilities; see `DeployedModels.predict`."""
    return self.deployed.predict(x, **options)

  def save_model(self, path: str | pathlib.Path, **options: Any) -> None:
    """Writes one model to a file; see `DeployedModels.save_model`."""
    self.deployed.save_model(path, **options)

  def to_torch(self, **options: Any) -> dict[str, np.ndarray]:
    """One model as PyTorch's `state_dict`; see `DeployedModels.to_torch`."""
    return self.deployed.to_torch(**options)


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
    state: the algorithm's final state. Its rows are clients in the order of `arranged`,
      as in checkpoints; `models` has them in the user's order.
    arranged: the training split as it was arranged for the devices.
    places: [M] position in `state` and `arranged` of the user's first, second, ...
      client.
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
    """Values that figures show of the clients, see `figure_data.draw` and `sheets`.

    With several processes, access it in every process.
    """
    return self.draw()

  @functools.cached_property
  def models(self) -> ClientModels:
    """The models that the M clients deploy, on the host, computed on first access.

    With several processes, access them in every process.
    """
    return fetched(self.deploy(), self.places)

  @functools.cached_property
  def deployed(self) -> DeployedModels:  # type: ignore[override]
    """The same by name: `deployed.predict(x, client='c3')`, `params`, `save_model`."""
    examples = Examples.of(self.arranged)
    names = self.clients['client'].to_numpy(str)
    return DeployedModels.of(self.models, names, examples, self.model)

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

  def __setstate__(self, state: dict[str, Any]) -> None:
    self.__dict__.update(state)
