"""The regret of the clients' assignment to centers."""

import jax
import numpy as np

from fesem_jax.data.corruption import honest
from fesem_jax.evaluation import evaluate, regret
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.callbacks.events import End, Evaluation, Start
from fesem_jax.utils import processes


class AssignmentRegret(Callback):
  """Adds the regret and the margin of the assignment to every evaluation's record.

  Applies to methods whose clients deploy one of several complete models; it adds
  nothing for other methods. The best center of a client is that of lowest training loss
  (`evaluation.regret.hindsight`). Entries with `test` in their names use test losses,
  which no client uses to choose. Each evaluation computes the losses of all K centers
  on all examples of both splits.

  The record gets `regret`: `mean` over clients, `by_examples`, the share of clients
  that are `misassigned`, the regret by test losses (`test_mean`, `test_by_examples`),
  and `test_gain`, the improvement of the first metric if clients deployed the best
  centers by training loss; and `margin`: `mean` and `by_examples`. All are of the
  clients that are not bad. The summary contains
  those of the last evaluation, and the clients' table `best_cluster`, `regret`,
  `margin` and `test_regret`. A run that was finished without this callback gets these
  entries if it is resumed with more rounds.

  Attributes:
    applies: whether the method of the run has such models; set by `on_start`.
  """

  applies: bool

  def on_start(self, start: Start) -> None:
    """Keeps the method and the sizes of the clients."""
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
    trained, tested = (
      regret.hindsight(of_split[places], assignment)
      for of_split in processes.on_host(program(*args))
    )
    choice = np.zeros(arranged.train.num_clients, np.int32)
    choice[places] = trained.best
    figures = regret.figures_of_choice(algorithm)
    program = arranged.compiled(('hindsight', algorithm), figures, *args, choice)
    task = algorithm.local.model.measured_as
    totals, kept = processes.on_host(program(*args, choice)), honest(arranged.train)
    before, counts = event.record, slice(None)
    if kept is not None:
      totals = jax.tree.map(lambda x: x[kept], totals)
      before, counts = before['honest'], kept[places]
    better, column = task.primary.better, task.primary_column
    scores = evaluate.scores(totals, task)
    gain = better(scores[column]) - better(before['deployed'][column])
    of, of_test = (
      regret.Hindsight(*(x[counts] for x in each)) for each in (trained, tested)
    )
    sizes = [x[counts] for x in self._sizes]
    event.record.update(regret.as_record(of, of_test, assignment[counts], sizes, gain))
    self._columns = regret.of_clients(trained, tested, self._sizes)

  def client_columns(self) -> dict[str, np.ndarray]:
    """The columns of the last evaluation."""
    return self._columns

  def on_end(self, event: End) -> None:
    """Adds the last evaluation's values to the summary."""
    for name in ('regret', 'margin'):
      if name in event.records[-1]:
        event.summary[name] = event.records[-1][name]
