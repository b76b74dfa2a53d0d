"""A finished run as its workdir holds it: metrics, and models that predict.

Nothing of it needs the data, the devices of the run, or its checkpoints.
"""

import dataclasses
import functools
import pathlib
from typing import TYPE_CHECKING, Any

import jax

from fesem_jax.core.types import Model
from fesem_jax.models import builders
from fesem_jax.models.starting import whole_model
from fesem_jax.run.results import client_table, files, saved_models
from fesem_jax.run.results.deployed_models import DeployedModels, Examples, by_layer
from fesem_jax.run.results.result import FinishedRun
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import check_choice

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run(FinishedRun):
  """A finished run that its workdir holds.

  Attributes:
    workdir: folder of the run.
    config: the content of `config.json`, which identifies it.
    summary: the content of `summary.json`.
    history: one record per round, the content of `metrics.jsonl`.
    clients: frame of metrics of each client, the content of `clients.csv`.
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
    is_best, file = self.which == 'best', [saved_models.BEST] * (self.which == 'best')
    rounds = self.summary['best_round']['round'] if is_best else self.summary['rounds']
    models = saved_models.read(self.workdir, rounds, *file)
    check(models, f'{self.workdir}: has no models; run again with save_models=True')
    assert models is not None
    model = self.model or _model_of(self.config, models.examples)
    if model is not None:
      model = whole_model(model)  # Saved models have all layers.
      _check_layers(model, models)
    return dataclasses.replace(models, model=model)

  @property
  def assignment(self) -> dict[str, int] | None:
    """Cluster of each client by its name; None without clusters."""
    if 'cluster' not in self.clients:
      return None
    return dict(zip(self.clients['client'], self.clients['cluster'], strict=True))


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
    files.read_object(folder / f'{name}.json') for name in ('config', 'summary')
  )
  check(config, f'{folder}: holds no run; name the workdir of a finished run')
  check(summary, f'{folder}: the run is not finished; run the same command again')
  assert config is not None
  assert summary is not None
  history = files.read_metrics(folder / 'metrics.jsonl', summary['rounds'])
  clients = client_table.read(folder)
  check(clients is not None, f'{folder}: has no clients.csv; run the command again')
  assert clients is not None
  has_round = which == 'last' or 'best_round' in summary
  check(has_round, f'which: {folder} has no best round; run with stop_after')
  return Run(folder, config, summary, history, clients, model, which)


def _model_of(config: dict[str, Any], examples: Examples) -> Model | None:
  """The model that a configuration names; None if it names none."""
  if str(config.get('model')).partition('(')[0] not in builders.NAMES:
    return None
  return builders.build(
    config['model'],
    examples.shape,
    examples.num_classes,
    [int(width) for width in config.get('hidden', [])],
    task=examples.task,
  )


def _check_layers(model: Model, models: DeployedModels) -> None:
  """Raises `UserError` unless a model has the layers that were saved."""
  params = jax.eval_shape(model.init, jax.random.key(0))
  expected = {path: tuple(x.shape) for path, x in by_layer(params).items()}
  saved = {path: x.shape[1:] for path, x in (models.shared | models.personal).items()}
  for path in sorted(expected.keys() | saved.keys()):
    ours, theirs = expected.get(path), saved.get(path)
    check(ours == theirs, f'model: layer {path} is {ours}, in the run {theirs}')
