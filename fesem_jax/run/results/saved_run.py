"""A finished run as its workdir holds it: figures, and models that predict.

Nothing of it needs the data, the devices of the run, or its checkpoints.
"""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Model, Params
from fesem_jax.models import builders
from fesem_jax.models.starting import whole_model
from fesem_jax.run.results import (
  client_history,
  file_digests,
  metrics_file,
  saved_models,
)
from fesem_jax.run.results.client_history import RecordedClients
from fesem_jax.run.results.client_table import ClientTable
from fesem_jax.run.results.deployed_models import DeployedModels, by_layer
from fesem_jax.run.results.explanation import Explanation, explain
from fesem_jax.utils.errors import UserError, path_of
from fesem_jax.utils.ranges import check_choice
from fesem_jax.utils.safe_files import first_line


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
    which: the round of its models, 'last' or 'best'; all else is of the last.
  """

  workdir: pathlib.Path
  config: dict[str, Any]
  summary: dict[str, Any]
  history: list[dict[str, Any]]
  clients: ClientTable
  model: Model | None = None
  which: str = 'last'

  @functools.cached_property
  def deployed(self) -> DeployedModels:
    """The models that clients deploy; raises `UserError` if they were not saved."""
    if self.which == 'best':
      number = self.summary['best_round']['round']
      held = saved_models.read(self.workdir, number, None, saved_models.BEST)
    else:
      held = saved_models.read(self.workdir, self.summary['rounds'], self.clients)
    if held is None:
      file = 'models_best.npz' if self.which == 'best' else 'models.npz'
      again = 'run the same command again with `save_models=True`, which adds them'
      if self.which == 'best':
        again = 'only a new run with `save_models=True` keeps them'
      raise UserError(
        f'{self.workdir} holds no models ({file} is missing): they were too large, '
        f'saving was off, or the run is of an older version; {again}.'
      )
    model, source = self.model, '`model`'
    if model is None:
      path = self.workdir / 'config.json'
      source = f'The model that {path} names'
      model = _model_of(path, self.config, held)
    if model is not None:
      if isinstance(model, Model):  # Saved models have all layers.
        model = whole_model(model)
      _check_model(model, held, source)
    return dataclasses.replace(held, model=model)

  @functools.cached_property
  def client_history(self) -> RecordedClients:
    """The history of every client in the recorded rounds, read when asked.

    Raises:
      UserError: if the run recorded none (`client_metrics_every`).
    """
    return client_history.read(self.workdir)

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
    return self.deployed.predict(
      x, client=client, cluster=cluster, probabilities=probabilities
    )

  def explain(self, client: str, data: FederatedData | None = None) -> Explanation:
    """Why a client has its cluster: history, losses of centers, distances to them.

    Distances are there if `callbacks.CenterDistances` has recorded those of the client.

    Args:
      client: its name.
      data: training or test split of the run, as `data.load` returned it, for the
        losses of the centers on the client's examples.

    Returns:
      The client's figures, its recorded rounds, the loss of each center, and the
      distances to all centers over rounds.

    Raises:
      UserError: on an unknown client or, with `data`, if clients do not choose one of
        several whole models, or these were not saved.
    """
    return explain(self, client, data)

  def export(
    self,
    path: str | pathlib.Path,
    *,
    client: str | None = None,
    cluster: int | None = None,
  ) -> None:
    """Writes one model to a file; see `DeployedModels.export`."""
    self.deployed.export(path, client=client, cluster=cluster)


def load_run(
  workdir: str | pathlib.Path, model: Model | None = None, which: str = 'last'
) -> Run:
  """A finished run from its workdir, on any machine and without the data.

  Args:
    workdir: of `simulate` or `fesem-run`.
    model: how its models compute; not needed for runs of the binaries with one of
      this package's models, whose configuration says it, nor for anything but
      `predict`.
    which: the round whose models it has: 'last', or 'best', which
      `callbacks.BestRound` (`--stop_after`) has kept; `summary['best_round']` has the
      scores of that round. All else is of the last round.

  Raises:
    UserError: if the folder holds no finished run, or a file of it is damaged; on
      'best', if no round is known to be best.
  """
  check_choice('which', which, ('last', 'best'))
  folder = path_of('workdir', workdir)
  if not folder.is_dir():
    raise UserError(f'{folder} is not a folder; name the `workdir` of a finished run.')
  summary = metrics_file.read_summary(folder)
  config = metrics_file.read_config(folder)
  if summary is None and (config is not None or metrics_file.saved_rounds(folder)):
    raise UserError(
      f'{folder} holds a run that is not finished; run the same command again to '
      'finish it.'
    )
  if summary is None or config is None or 'deployed' not in summary:
    raise UserError(
      f'{folder} holds no run of this package: a finished run has config.json and '
      'summary.json.'
    )
  rounds = summary.get('rounds')
  history = metrics_file.read_metrics(folder / 'metrics.jsonl', rounds)
  if not history or history[-1]['round'] != rounds:
    raise UserError(
      f'{folder / "metrics.jsonl"} does not reach round {rounds} of summary.json; '
      'restore a valid copy.'
    )
  file_digests.check(folder, summary, history)
  clients = file_digests.read_clients(folder, summary)
  if clients is None:
    raise UserError(
      f'{folder} lacks clients.csv, as runs of an older version do; run the same '
      'command again, which adds it.'
    )
  if which == 'best' and 'best_round' not in summary:
    raise UserError(
      f'`which=best`: {folder} has no best round; run with `stop_after`, or with the '
      'callback `BestRound`.'
    )
  return Run(folder, config, summary, history, clients, model, which)


def _model_of(
  path: pathlib.Path, config: dict[str, Any], held: DeployedModels
) -> Model | None:
  """The model that a configuration at `path` names; None if it names none."""
  if config.get('model') not in builders.NAMES:
    return None
  examples = held.examples
  try:
    widths = [int(width) for width in config.get('hidden', [])]
    return builders.build(
      config['model'],
      examples.shape,
      examples.num_classes,
      widths,
      task=examples.task,
      options=config.get('model_options'),
    )
  except Exception as e:
    raise UserError(
      f'{path} names a model that cannot be made ({first_line(e)}); pass `model`, the '
      '`Model` that was trained, to `load_run`.'
    ) from e


def _check_model(model: Model, models: DeployedModels, source: str) -> None:
  """Raises `UserError` unless a model computes with the layers that were saved."""
  shape = models.examples.shape
  batch = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
  try:
    params = jax.eval_shape(model.init, jax.random.key(0))
    logits = jax.eval_shape(model.apply, params, batch).shape
  except Exception as e:  # A model may raise all kinds.
    raise UserError(
      f'{source} does not compute with examples of shape {shape} ({first_line(e)}).'
    ) from e
  wanted = {path: tuple(x.shape) for path, x in by_layer(params).items()}
  held = {path: x.shape[1:] for path, x in (models.shared | models.own).items()}
  for path in sorted(wanted.keys() | held.keys()):
    here, there = wanted.get(path, 'absent'), held.get(path, 'absent')
    if here != there:
      raise UserError(
        f'{source} is not the one that was trained: its layer {path} is {here}, in the '
        f'run {there}.'
      )
  wanted_shape = models.examples.output_shape(1)
  if logits != wanted_shape:
    raise UserError(
      f'{source} gives outputs of shape {logits} for one example, but models.npz needs '
      f'{wanted_shape}.'
    )
