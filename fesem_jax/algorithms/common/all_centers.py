"""Bytes of clients that receive all centers and choose among them."""

import numpy as np

from fesem_jax.algorithms.common.random_centers import RandomCenters
from fesem_jax.core import traffic
from fesem_jax.core.local_training import LocalTraining


def all_centers_sent(
  local: LocalTraining, num_clusters: int, variant: str, start: RandomCenters
) -> traffic.Traffic:
  """Traffic of clients that receive all K centers and choose among them.

  Clients send models if `variant` is 'model', gradients if it is 'gradient'. One draw
  of the first centers is compared with none, so that no loss is sent for it.
  """
  size = traffic.bytes_of_model(local)
  all_of_them, answer = num_clusters * size, size + traffic.NUMBER

  def of_round(known, drawn):
    chosen_before = drawn.keep_clusters & ~np.asarray(drawn.by_loss)
    down = np.where(chosen_before, size, all_of_them)
    return traffic.Sent(down, answer, np.where(chosen_before, 0, num_clusters))

  compared = start.restarts > 1

  def starters(num_clients):
    return start.restarts * min(start.clients, num_clients)

  def of_start(num_clients):
    times = starters(num_clients)
    down = times * (start.rounds + compared) * all_of_them
    return down, times * (start.rounds * answer + compared * traffic.NUMBER)

  return traffic.Traffic(
    of_round,
    of_start,
    model=size,
    num_models=num_clusters,
    whole_batches=variant == 'gradient',
    beside=f'the number of its cluster{", losses of first centers" * compared}',
    models_before=start.restarts * start.rounds,
    starters=starters,
  )


def chosen_centers_sent(
  local: LocalTraining, num_clusters: int, first_assignment: str, stable_rounds: int
) -> traffic.Traffic:
  """Traffic of CLoVE: all models and a cluster's number down, losses and a model up.

  Once clustering has ended, a model down and a model up.
  """
  size = traffic.bytes_of_model(local)
  down = num_clusters * size + traffic.NUMBER
  up = size + num_clusters * traffic.NUMBER

  def of_round(known, drawn):
    if drawn.number == 1 and first_assignment == 'random':
      return traffic.Sent(size, size)
    if not stable_rounds:
      return traffic.Sent(down, up, num_clusters)
    ended, streaks = known
    streaks = np.asarray(streaks)[drawn.ids]
    chooses = not ended and (streaks < stable_rounds).any()
    late = chooses | (streaks == 0)  # A client that never took part chooses by loss.
    sent = np.where(late, num_clusters * size, size) + chooses * traffic.NUMBER
    return traffic.Sent(
      sent, np.where(chooses, up, size), np.where(late, num_clusters, 0)
    )

  known = (lambda state: (state.ended, state.streaks)) if stable_rounds else None
  return traffic.Traffic(
    of_round, known=known, model=size, num_models=num_clusters,
    beside='losses of models',
  )  # fmt: skip
