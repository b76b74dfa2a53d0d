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
  takes part or not, and rounds draw each client with the probability `sampling_rate`
  (Poisson). With noise of the clients, the change of one client is replaced, by which
  it moves up to twice the clip; the server sees who takes part, and sampling gains
  nothing. Each client sends `models_before` models before the first round.

  Returns infinity without noise, None if delta is 0.
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
  accountant, round_event = rdp.RdpAccountant(), event
  if not client and sampling_rate < 1:
    round_event = dp_accounting.PoissonSampledDpEvent(sampling_rate, event)
  absl = logging.getLogger('absl')  # Names each order that it leaves out.
  before, absl.disabled = absl.disabled, True
  try:
    for part, count in ((round_event, rounds), (event, models_before)):
      if count:
        accountant.compose(part, count)
    return float(accountant.get_epsilon(privacy.delta))
  finally:
    absl.disabled = before


def notes(privacy: Privacy, traffic: Traffic | None, clustered: bool) -> list[str]:
  """Limits of epsilon, for a method with or without clusters."""
  if clustered and privacy.where == 'server':
    return ['dp: epsilon covers the centers given the clusters, not their choice']
  if traffic is None or not traffic.extras:
    return []
  return [f'dp: epsilon does not cover what clients send beside: {traffic.extras}']
