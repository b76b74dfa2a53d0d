"""The privacy that a run has spent: epsilon by rounds, sampling and noise."""

import logging
import math
from typing import Any

from fesem_jax.core.sending import Privacy
from fesem_jax.core.traffic import Traffic


def epsilon(
  privacy: Privacy, rounds: int, sampling_rate: float = 1.0, models_before: int = 0
) -> float | None:
  """The epsilon of one client after so many rounds, for the delta of `privacy`.

  By the accountant of Renyi differential privacy of dp-accounting (Mironov 2017;
  Mironov et al. 2019). With noise of the server, neighbors differ in that a client
  takes part or not, and rounds draw each client with a probability (Poisson); with
  noise of the clients, the change of one client is replaced, by which it moves up to
  twice the clip, and the server sees who takes part: nothing is gained by sampling.

  Args:
    privacy: clip, noise and delta.
    rounds: number of rounds.
    sampling_rate: share of the clients in a round; 1 is all.
    models_before: models that each client sends before the first round.

  Returns:
    Epsilon; infinity without noise, None if delta is 0.
  """
  if not privacy.delta:
    return None
  if not rounds + models_before:
    return 0.0
  if not privacy.noise_multiplier:
    return math.inf
  import dp_accounting
  from dp_accounting import rdp

  client = privacy.where == 'client'
  noise = privacy.noise_multiplier / 2 if client else privacy.noise_multiplier
  event: Any = dp_accounting.GaussianDpEvent(noise)
  accountant, of_round = rdp.RdpAccountant(), event
  if not client and sampling_rate < 1:
    of_round = dp_accounting.PoissonSampledDpEvent(sampling_rate, event)
  absl = logging.getLogger('absl')  # Names each order that it leaves out.
  before, absl.disabled = absl.disabled, True
  try:
    for each, count in ((of_round, rounds), (event, models_before)):
      if count:
        accountant.compose(each, count)
    return float(accountant.get_epsilon(privacy.delta))
  finally:
    absl.disabled = before


def notes(
  privacy: Privacy,
  traffic: Traffic | None,
  sampling_rate: float,
  clustered: bool,
) -> list[str]:
  """Sentences on what epsilon covers and what it does not.

  `clustered` says whether the method has clusters, and `traffic` is its messages.
  """
  texts = []
  if privacy.where == 'client':
    texts.append(
      '`dp=client`: epsilon is of a client that takes part in every round, against the '
      'server too; as the server sees who takes part, sampling amplifies nothing.'
    )
  elif sampling_rate < 1:
    texts.append(
      f'`dp=server`: rounds draw a fixed number of clients; epsilon is that of drawing '
      f'each with probability {sampling_rate:.3g}, as is usual, of one client more or '
      'less, and holds only if nobody learns who was drawn.'
    )
  else:
    texts.append(
      '`dp=server`: all clients take part in every round, so sampling amplifies '
      'nothing; epsilon is of one client more or less.'
    )
  if clustered and privacy.where == 'server':
    texts.append(
      '`dp=server`: clusters are chosen from models or losses without noise, and the '
      'number of clients of each is taken as known; epsilon covers the centers given '
      'the clusters, not the choice of the clusters. Eq. 6 is not reported: it would '
      'be computed from sums that are clipped and have noise.'
    )
  beside = '' if traffic is None else traffic.beside
  if beside and not (clustered and privacy.where == 'server'):
    texts.append(f'`dp`: epsilon does not cover what clients send beside: {beside}.')
  if traffic is not None and traffic.models_before:
    texts.append(
      f'`dp`: each client sends up to {traffic.models_before} models before the first '
      'round, which epsilon counts without sampling.'
    )
  return texts
