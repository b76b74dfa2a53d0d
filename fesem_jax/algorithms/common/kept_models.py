"""Storage of clients' models between rounds."""

from typing import Any

from jax.sharding import Mesh

from fesem_jax.algorithms.common.cluster_start import ClusterStart
from fesem_jax.algorithms.common.em_steps import EStep, MStep
from fesem_jax.core import offloading, tree
from fesem_jax.core.types import Cohort, Params
from fesem_jax.utils.errors import UserError, check_choice


def check_kept(
  client_state: str, e_step: EStep, m_step: MStep, start: ClusterStart
) -> None:
  """Raises `UserError` on options of FeSEM that exclude each other."""
  check_choice('client_state', client_state, ('stacked', 'streamed', 'offloaded'))
  robust = m_step.aggregation.rule != 'mean'
  if e_step.temperature and robust:
    raise UserError(
      '`temperature` gives clients a weight for each center: leave out '
      f'`aggregation={m_step.aggregation.rule}`, which does not use weights.'
    )
  for option, asked in (
    ('aggregation', robust),
    ('init_models', start.models != 'common'),
  ):
    if asked and client_state != 'stacked':
      raise needs_stack(option, client_state)


def needs_stack(option: str, client_state: str = 'stacked') -> UserError:
  """The error where an option needs models that are not on the devices."""
  return UserError(
    f'`{option}` needs the models of all clients on the devices: leave out '
    f'`client_state={client_state}`.'
  )


def room_for_models(
  state: Any, cohort: Cohort, client_state: str, mesh: Mesh
) -> Params:
  """Where the cohort's new models are put: in the old ones' memory, or the host's.

  The state has `client_params` [M, ...] and `centers` [K, ...]; `client_state` is that
  of `fesem`. Returns [S, ...] to overwrite, or None.
  """
  if cohort.everyone:
    return state.client_params
  if client_state == 'offloaded':  # Room alone: they start from centers.
    one = tree.unstack(state.centers, 0)
    return offloading.repeat(one, cohort.ids.shape[0], mesh)
  return None
