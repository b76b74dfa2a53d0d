"""Events for callbacks, and the callbacks of the run itself."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fesem_jax.callbacks.backdoor import BackdoorSuccess
from fesem_jax.callbacks.callback import Callback
from fesem_jax.callbacks.calls import Callbacks
from fesem_jax.callbacks.costs import Costs
from fesem_jax.callbacks.events import Arranged, RoundEnd, Start
from fesem_jax.callbacks.patience import Patience
from fesem_jax.callbacks.privacy import PrivacySpent
from fesem_jax.callbacks.progress import Progress
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.models.starting import whole_model, with_constants
from fesem_jax.results.deployed_models import DeployedModels, Examples
from fesem_jax.results.result import fetched
from fesem_jax.run.preparation import Prepared, sampling_rate


def begin(run: Prepared, callbacks: Callbacks, test: FederatedData) -> str | None:
  """Tells callbacks of a run; returns why no round is to follow, or None.

  `run` is before its next round, and `test` is the test split as the user gave it.
  """
  settings = run.settings
  start = Start(
    algorithm=run.algorithm,
    train=run.data.on_host,
    test=test,
    rounds=settings.rounds,
    seed=settings.seed,
    done=run.done,
    records=tuple(run.out.records),
    workdir=run.folder,
    config=run.config,
    state=run.state,
    arranged=arranged(run),
  )
  built_in = [Patience(settings.patience), _Saving(run), Progress()]
  first: list[Callback] = [] if callbacks.includes(Costs) else [Costs()]
  sends = run.algorithm.local.sends
  if sends is not None and sends.privacy is not None:
    rate = sampling_rate(settings, run.data.on_host)
    first.append(PrivacySpent(sends.privacy, run.algorithm.traffic, rate))
  corruption = run.data.on_host.corruption
  if corruption is not None and corruption.backdoor is not None:
    first.append(BackdoorSuccess(corruption.backdoor))
  return callbacks.on_start(start, first, built_in)


class _Saving(Callback):
  """Saves each round: its record, and the state where a checkpoint is due."""

  def __init__(self, run: Prepared):
    self._run = run

  def on_round_end(self, event: RoundEnd) -> None:
    """Saves the round."""
    run, every = self._run, self._run.settings.checkpoint_every
    run.out.write(event.record)
    due = event.last or (every and event.number % every == 0)
    if run.checkpoints is not None and event.number and due:
      run.checkpoints.save(event.number, event.state)


def arranged(run: Prepared) -> Arranged:
  """The data of a run on the devices, and what callbacks may compute of its state."""
  evaluation, data, places = run.evaluation, run.data, run.data.places
  model, examples = whole_model(run.algorithm.local.model), Examples.of(data.train)
  names = np.asarray(data.on_host.info.names)

  def deployed(state: Any) -> DeployedModels:
    models = fetched(deploy(run, state)(), places)
    return DeployedModels.of(models, names, examples, model)

  return Arranged(
    data.train, data.test, places, run.programs.compiled, deployed,
    evaluation.assignment,
  )  # fmt: skip


def deploy(run: Prepared, state: Any) -> Callable[[], ClientModels]:
  """() -> the models that clients deploy from a state, as arranged."""
  model = run.algorithm.local.model
  return lambda: with_constants(model, run.evaluation.models(state))
