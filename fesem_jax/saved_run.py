"""A finished run as its workdir holds it: figures, and models that predict.

Nothing of it needs the data, the devices of the run, or its checkpoints.
"""

import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from fesem_jax import client_table, models, saved_models, writer
from fesem_jax.base import Model, Params
from fesem_jax.client_table import ClientTable
from fesem_jax.deployed import DeployedModels
from fesem_jax.errors import UserError


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
    held = saved_models.read(self.workdir, self.model)
    path, rounds = self.workdir / 'models.npz', self.summary['rounds']
    if held is None:
      raise UserError(
        f'{self.workdir} holds no models (models.npz is missing): they were too large, '
        'or not to be saved, or the run is of an older version; run the same command '
        'again with `save_models=True`, which adds them.'
      )
    if not saved_models.is_of(self.workdir, rounds):
      raise UserError(
        f'{path} is of another run than config.json, or of another round than '
        f'summary.json ({rounds}); run the same command again, which makes it anew.'
      )
    chosen, cluster = held.choice, self.clients.cluster
    if len(held.names) != len(self.clients.names) or (
      chosen is not None and cluster is not None and (chosen != cluster).any()
    ):
      raise UserError(
        f'{path} and clients.csv disagree on the clients or their clusters: they are '
        'not of one run; delete both and run the same command again.'
      )
    if self.model is None:
      held = dataclasses.replace(held, model=_model_of(self.config, held))
    return held

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
    workdir: of `simulate` or `experiments.run`.
    model: how its models compute; not needed for runs of the binaries with one of
      this package's models, whose configuration says it, nor for anything but
      `predict`.

  Raises:
    UserError: if the folder holds no finished run, or a file of it is damaged.
  """
  folder = pathlib.Path(workdir)
  if not folder.is_dir():
    raise UserError(f'{folder} is no folder; name the `workdir` of a finished run.')
  summary = writer.read_summary(folder)
  config = writer.read_config(folder)
  if summary is None and (config is not None or writer.saved_rounds(folder)):
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
  history = writer.read_metrics(folder / 'metrics.jsonl', rounds)
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
  if not client_table.agrees(clients, summary):
    raise UserError(
      f'{folder / "clients.csv"} and summary.json are not of one run, or of different '
      'rounds; run the same command again.'
    )
  return Run(folder, config, summary, history, clients, model)


def _model_of(config: dict[str, Any], held: DeployedModels) -> Model | None:
  """The model that a configuration of the binaries names; None if it names none."""
  if config.get('model') not in models.NAMES:
    return None
  hidden = [int(width) for width in config.get('hidden', ())]
  examples = held.examples
  return models.build(config['model'], examples.shape, examples.num_classes, hidden)
