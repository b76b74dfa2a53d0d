"""A finished run as its workdir holds it: figures, and models that predict.

Nothing of it needs the data, the devices of the run, or its checkpoints.
"""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import numpy as np

from fesem_jax.core.types import Model, Params
from fesem_jax.models import networks
from fesem_jax.results import (
  client_table,
  metrics_file,
  saved_model_checks,
  saved_models,
)
from fesem_jax.results.client_table import ClientTable
from fesem_jax.results.deployed_models import DeployedModels
from fesem_jax.utils.display import shown
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import first_line

_PASS_MODEL = 'pass `model`, the `Model` that was trained, to `load_run`.'


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """A finished run.

  Attributes:
    workdir: folder of the run.
    config: what identifies it, what `config.json` holds.
    summary: what `summary.json` holds.
    history: one record per round, what `metrics.jsonl` holds.
    clients: figures of each client, what `clients.csv` holds.
    model: how its models compute; None to find that by `config`.
  """

  workdir: pathlib.Path
  config: dict[str, Any]
  summary: dict[str, Any]
  history: list[dict[str, Any]]
  clients: ClientTable
  model: Model | None = None

  @functools.cached_property
  def deployed(self) -> DeployedModels:
    """The models that clients deploy; raises `UserError` if they were not saved."""
    held = saved_models.read(self.workdir, self.summary['rounds'], self.clients)
    if held is None:
      raise UserError(
        f'{self.workdir} holds no models (models.npz is missing): they were too large, '
        'or not to be saved, or the run is of an older version; run the same command '
        'again with `save_models=True`, which adds them.'
      )
    model, source = self.model, '`model`'
    if model is None:
      path = self.workdir / 'config.json'
      source = f'The model that {path} names'
      model = _model_of(path, self.config, held)
    if model is not None:
      saved_model_checks.check_model(model, held, source)
    return dataclasses.replace(held, model=model)

  @property
  def assignment(self) -> dict[str, int] | None:
    """Cluster of each client by its name; None without clusters."""
    return self.clients.assignment()

  @property
  def centers(self) -> Params:
    """[R, ...] the global model or the centers; see `DeployedModels.centers`."""
    return self.deployed.centers

  def params(self, *, client: str | None = None, cluster: int | None = None) -> Params:
    """One model; see `DeployedModels.params`."""
    return self.deployed.params(client=client, cluster=cluster)

  def predict(
    self,
    x: Any,
    *,
    client: str | None = None,
    cluster: int | None = None,
    probabilities: bool = False,
  ) -> np.ndarray:
    """Classes of examples, or their probabilities; see `DeployedModels.predict`."""
    chosen: dict[str, Any] = {'client': client, 'cluster': cluster}
    return self.deployed.predict(x, **chosen, probabilities=probabilities)

  def export(
    self,
    path: str | pathlib.Path,
    *,
    client: str | None = None,
    cluster: int | None = None,
  ) -> None:
    """Writes one model to a file; see `DeployedModels.export`."""
    self.deployed.export(path, client=client, cluster=cluster)


def load_run(workdir: str | pathlib.Path, model: Model | None = None) -> Run:
  """A finished run from its workdir, on any machine and without the data.

  Args:
    workdir: of `simulate` or `fesem-run`.
    model: how its models compute; not needed for runs of the binaries with one of
      this package's models, whose configuration says it, nor for anything but
      `predict`.

  Raises:
    UserError: if the folder holds no finished run, or a file of it is damaged.
  """
  folder = pathlib.Path(workdir)
  if not folder.is_dir():
    raise UserError(f'{folder} is no folder; name the `workdir` of a finished run.')
  summary = metrics_file.read_summary(folder)
  config = metrics_file.read_config(folder)
  if summary is None and (config is not None or metrics_file.saved_rounds(folder)):
    raise UserError(
      f'{folder} holds a run that is not finished; run the same command again to '
      'finish it.'
    )
  if summary is None or config is None or 'deployed' not in summary:
    raise UserError(
      f'{folder} holds no run of this package: config.json and summary.json are what '
      'a finished run has.'
    )
  rounds = summary.get('rounds')
  history = metrics_file.read_metrics(folder / 'metrics.jsonl', rounds)
  if not history or history[-1]['round'] != rounds:
    raise UserError(
      f'{folder / "metrics.jsonl"} does not reach round {rounds} of summary.json; put '
      'back a sound copy.'
    )
  clients = client_table.read(folder)
  if clients is None:
    raise UserError(
      f'{folder} lacks clients.csv, as runs of an older version do; run the same '
      'command again, which adds it.'
    )
  if json.dumps(_figures(summary)) != json.dumps(_figures(history[-1])):
    if client_table.agrees(clients, summary):
      raise UserError(
        f'{folder / "metrics.jsonl"} does not belong to summary.json: its figures of '
        f'round {rounds} are others; put back a sound copy.'
      )
    raise UserError(
      f'{folder / "summary.json"} does not belong to metrics.jsonl: its figures are '
      f'not those of round {rounds}; run the same command again, which makes it anew.'
    )
  if not client_table.agrees(clients, summary):
    stray, other = 'clients.csv', 'summary.json'
    if saved_models.clients_digest(folder) == client_table.digest(clients):
      stray, other = other, stray
    raise UserError(
      f'{folder / stray} does not belong to {other}: they are not of one run, or of '
      'different rounds; run the same command again, which makes it anew.'
    )
  return Run(folder, config, summary, history, clients, model)


def _figures(record: dict[str, Any]) -> list[Any]:
  return [record.get(kind) for kind in ('deployed', 'finetuned')]


def _model_of(
  path: pathlib.Path, config: dict[str, Any], held: DeployedModels
) -> Model | None:
  """The model that a configuration of the binaries names; None if it names none.

  Args:
    path: of the configuration, for errors.
    config: what it holds.
    held: the models, which compute so.

  Raises:
    UserError: if there is no such model.
  """
  if config.get('model') not in networks.NAMES:
    return None
  widths = config.get('hidden', []) if config['model'] == 'mlp' else []
  if not isinstance(widths, list) or not all(map(_is_width, widths)):
    raise UserError(
      f'{path} has {shown(widths)} as `hidden`, which must be a list of widths such as '
      f'[200, 100]; {_PASS_MODEL}'
    )
  shape, num_classes = held.examples.shape, held.examples.num_classes
  try:
    return networks.build(config['model'], shape, num_classes, list(map(int, widths)))
  except Exception as e:
    raise UserError(
      f'{path} names a model that cannot be made for examples of shape {shown(shape)}, '
      f'as models.npz has them ({first_line(e)}); {_PASS_MODEL}'
    ) from e


def _is_width(value: Any) -> bool:
  if type(value) not in (int, str) or not str(value).isdecimal():
    return False
  return 1 <= int(value) < 2**31
