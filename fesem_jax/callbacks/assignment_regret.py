"""Measures the regret of clients' assignments to centers."""

import jax
import numpy as np

from fesem_jax.callbacks.callback import Callback
from fesem_jax.callbacks.events import End, Evaluation, Start
from fesem_jax.evaluation import evaluate, regret
from fesem_jax.utils import processes


class AssignmentRegret(Callback):
  """Adds the regret and the margin of the assignment to every evaluation's record.

  For methods whose clients deploy one of several whole models; of others nothing is
  added. Best centers are found by training examples (`evaluation.regret.hindsight`).
  What is called `test` is found, or measured, on test examples after the fact, and no
  client chooses by it. Losses are of all K centers on all examples of both splits.

  The record gets `regret`: `mean` over clients, `by_examples`, the share of clients
  that are `misassigned`, the regret by test losses (`test_mean`, `test_by_examples`),
  and `test_gain`, by how much the first figure would be better if clients deployed the
  best centers by training loss; and `margin`: `mean` and `by_examples`. The summary has
  those of the last evaluation, and the clients' table `best_cluster`, `regret`,
  `margin` and `test_regret`. A run that was finished without them gets them when it
  goes on with more rounds.

  Attributes:
    applies: whether the method of the run has such models; known once it has started.
  """

  applies: bool

  def on_start(self, start: Start) -> None:
    """Keeps what the losses depend on."""
    self._algorithm = algorithm = start.algorithm
    self._columns = dict[str, np.ndarray]()
    used = jax.eval_shape(algorithm.deployed, start.state, start.arranged.train)
    self.applies = used.own is None and used.mixture is None and used.has_clusters()
    self._sizes = [np.diff(np.asarray(s.offsets)) for s in (start.train, start.test)]

  def on_evaluation(self, event: Evaluation) -> None:
    """Measures the assignment."""
    assignment, arranged, algorithm = event.assignment, event.arranged, self._algorithm
    if not self.applies or assignment is None:
      return
    args = event.state, arranged.train, arranged.test
    losses = regret.center_losses(algorithm)
    program = arranged.compiled(('losses', algorithm), losses, *args)
    places = arranged.places
    found, tested = (
      regret.hindsight(of_split[places], assignment)
      for of_split in processes.on_host(program(*args))
    )
    choice = np.zeros(arranged.train.num_clients, np.int32)
    choice[places] = found.best
    figures = regret.figures_of_choice(algorithm)
    program = arranged.compiled(('hindsight', algorithm), figures, *args, choice)
    task = algorithm.local.model.task
    scores = evaluate.scores(processes.on_host(program(*args, choice)), task)
    better, column = task.primary.better, task.primary_column
    gain = better(scores[column]) - better(event.record['deployed'][column])
    event.record.update(regret.as_record(found, tested, assignment, self._sizes, gain))
    self._columns = regret.of_clients(found, tested, self._sizes)

  def client_columns(self) -> dict[str, np.ndarray]:
    """Those of the last evaluation."""
    return self._columns

  def on_end(self, event: End) -> None:
    """Adds the last evaluation's figures to the summary."""
    for name in ('regret', 'margin'):
      if name in event.records[-1]:
        event.summary[name] = event.records[-1][name]
