"""Events for callbacks, and the callbacks of the run itself."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.attacks import backdoor_of
from fesem_jax.models.starting import whole_model, with_constants
from fesem_jax.run.callbacks.backdoor import BackdoorSuccess
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.callbacks.calls import Callbacks
from fesem_jax.run.callbacks.costs import Costs
from fesem_jax.run.callbacks.events import Arranged, Evaluation, RoundEnd, Start
from fesem_jax.run.callbacks.options import Patience
from fesem_jax.run.callbacks.privacy import PrivacySpent
from fesem_jax.run.callbacks.server_metrics import ServerMetrics
from fesem_jax.run.preparation import Prepared
from fesem_jax.run.results import records
from fesem_jax.run.results.deployed_models import DeployedModels, Examples
from fesem_jax.run.results.result import fetched
from fesem_jax.utils import progress_lines


def begin(
  run: Prepared, callbacks: Callbacks, test: FederatedData, shows: bool = True
) -> str | None:
  """Tells callbacks of a run; returns why no round is to follow, or None.

  `run` is before its next round, `test` is the test split as the user gave it, and
  `shows` is whether its progress is shown.
  """
  spec = run.spec
  start = Start(
    algorithm=run.algorithm,
    train=run.data.on_host,
    test=test,
    rounds=spec.rounds,
    seed=spec.seed,
    done=run.done,
    records=tuple(run.out.records),
    workdir=spec.workdir,
    config=spec.config,
    state=run.state,
    arranged=arranged(run),
  )
  built_in: list[Callback] = [_Saving(run)]
  if spec.patience:
    built_in.insert(0, Patience(spec.patience))
  built_in += [ShownProgress()] if shows else []
  first: list[Callback] = [] if callbacks.includes(Costs) else [Costs()]
  sends = run.algorithm.local.sends
  if sends is not None and sends.privacy is not None:
    first.append(PrivacySpent(sends.privacy, run.algorithm.traffic, spec.sampling_rate))
  if (backdoor := backdoor_of(run.data.on_host)) is not None:
    first.append(BackdoorSuccess(backdoor.target))
  if test.server_test is not None:
    first.append(ServerMetrics())
  return callbacks.on_start(start, first, built_in)


class _Saving(Callback):
  """Saves each round: its record, and the state where a checkpoint is due."""

  def __init__(self, run: Prepared):
    self._run = run

  def on_round_end(self, event: RoundEnd) -> None:
    """Saves the round."""
    run, every = self._run, self._run.spec.checkpoint_every
    run.out.write(event.record)
    due = event.last or (every and event.number % every == 0)
    # Side by side with others, the state is there where the run ends.
    due = due and event.state is not None
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


class ShownProgress(Callback):
  """Shows rounds, loss, first metric and cluster sizes; see `progress_lines.shown`."""

  def on_start(self, start: Start) -> None:
    """Shows the rounds that are done."""
    self._display = progress_lines.display()
    self._task, self._total = start.algorithm.local.model.measured_as, start.rounds
    measured = [r for r in start.records if 'finetuned' in r]
    self._measured = measured[-1] if measured else {}
    if self._display is not None and start.done < start.rounds:
      self._display.rounds(start.done, start.rounds)

  def on_evaluation(self, event: Evaluation) -> None:
    """Keeps the metrics for rounds without an evaluation."""
    self._measured = event.record

  def on_round_end(self, event: RoundEnd) -> None:
    """Shows the round."""
    if self._display is not None and event.number:
      figures = records.progress(event.record, self._measured, self._task)
      self._display.rounds(event.number, self._total, figures, over=event.last)
