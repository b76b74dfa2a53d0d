"""The result of a run, with the order and the names of the input data."""

import dataclasses
import functools
import pickle
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fesem_jax.core import offloading
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Model
from fesem_jax.run.results import outcome
from fesem_jax.run.results.deployed_models import (
  DeployedModels,
  Examples,
  ModelAccess,
)
from fesem_jax.run.results.frames import Frames, of_result, rounds_of
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


@dataclasses.dataclass(frozen=True, eq=False)
class Result(ModelAccess):
  """A finished run.

  Clients are in the order of the training split passed to `simulate`, except in
  `state` and `arranged`. It can be pickled, after which it has no `arranged`.

  Attributes:
    clients: frame of metrics of each client, what `clients.csv` holds.
    summary: what `summary.json` holds.
    history: one record per round, what `metrics.jsonl` holds.
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
    return of_result(self)

  @functools.cached_property
  def portrait(self) -> dict[str, np.ndarray]:
    """Values that figures show of the clients, see `figure_data.draw` and `sheets`.

    Without a workdir, it is computed on first access; with several processes, access
    it in every process.
    """
    return self.draw()

  @functools.cached_property
  def models(self) -> ClientModels:
    """The models that the M clients deploy, on the host, computed on first access.

    With several processes, access them in every process.
    """
    return fetched(self.deploy(), self.places)

  @functools.cached_property
  def deployed(self) -> DeployedModels:
    """The same by name: `deployed.predict(x, client='c3')`, `params`, `save_model`."""
    examples = Examples.of(self.arranged)
    names = self.clients['client'].to_numpy(str)
    return DeployedModels.of(self.models, names, examples, self.model)

  def __getstate__(self) -> dict[str, Any]:
    """What can be pickled: arrays on the host, and the model if it can be."""
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


def fetched(used: ClientModels, places: np.ndarray) -> ClientModels:
  """Models as arranged, on the host and in the user's order; see `Result`."""
  used = offloading.as_arrays(processes.on_host(used))
  choice, own, mixture = jax.tree.map(
    lambda x: np.asarray(x)[places], (used.choice, used.own, used.mixture)
  )
  return ClientModels(used.shared, choice, own, mixture)
