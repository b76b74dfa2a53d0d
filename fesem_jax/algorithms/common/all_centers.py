"""Bytes of clients that receive all centers and choose among them."""

from fesem_jax.algorithms.common.random_centers import RandomCenters
from fesem_jax.core import traffic
from fesem_jax.core.local_training import LocalTraining


def all_centers_sent(
  local: LocalTraining, num_clusters: int, start: RandomCenters
) -> traffic.Traffic:
  """Clients receive all centers; the trials of the first centers come before."""
  size = traffic.bytes_of_model(local)
  all_of_them, answer = num_clusters * size, size + traffic.NUMBER

  def of_round(known, drawn):
    if drawn.keep_clusters:
      return traffic.Sent(size, answer)
    return traffic.Sent(all_of_them, answer, num_clusters)

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
    beside=f'the number of its cluster{", losses of first centers" * compared}',
    models_before=start.restarts * start.rounds,
    starters=starters,
  )


def chosen_centers_sent(local: LocalTraining, num_clusters: int) -> traffic.Traffic:
  """Models and a cluster's number down, losses and a model up; first a model each."""
  size = traffic.bytes_of_model(local)
  down = num_clusters * size + traffic.NUMBER
  up = size + num_clusters * traffic.NUMBER

  def of_round(known, drawn):
    if drawn.number == 1:
      return traffic.Sent(size, size)
    return traffic.Sent(down, up, num_clusters)

  return traffic.Traffic(of_round, model=size, beside='losses of models')
