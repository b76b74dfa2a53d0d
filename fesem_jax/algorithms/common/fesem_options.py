"""Which values of FeSEM's options are allowed, alone and together."""

from typing import Any

from fesem_jax.training.cohort import WEIGHTINGS
from fesem_jax.utils.errors import UserError, check_at_least, check_choice


def check_options(
  *,
  num_clusters: int,
  prox_lambda: float,
  prox_weighting: str,
  weighting: str,
  cluster_on: str,
  temperature: float,
  aggregation: str,
  loss_check_every: int,
  recluster_every: int,
  reseed_empty: bool,
  max_age: int,
  late_joins: bool,
  init_models: str,
  init_epochs: int,
  init_restarts: int,
  init_seeding: str,
  init_clients: int,
  init_shuffle: float,
  client_state: str,
  **checked_elsewhere: Any,
) -> None:
  """Raises `UserError` on options of `fesem` that are wrong, alone or together."""
  del checked_elsewhere
  check_choice('prox_weighting', prox_weighting, ('uniform', 'paper'))
  check_choice('weighting', weighting, WEIGHTINGS)
  check_choice('init_models', init_models, ('common', 'random'))
  check_choice('init_seeding', init_seeding, ('random', 'plusplus'))
  check_choice('client_state', client_state, ('stacked', 'streamed', 'offloaded'))
  check_at_least(
    1, num_clusters=num_clusters, init_epochs=init_epochs, init_restarts=init_restarts
  )
  check_at_least(0, prox_lambda=prox_lambda, init_clients=init_clients)
  check_at_least(0, loss_check_every=loss_check_every, recluster_every=recluster_every)
  check_at_least(0, temperature=temperature, max_age=max_age)
  check_at_least(0, init_shuffle=init_shuffle)
  if init_shuffle > 1:
    raise UserError(f'`init_shuffle={init_shuffle}` must lie in [0, 1].')
  for option, asked in {
    'aggregation': aggregation != 'mean',
    'reseed_empty': reseed_empty,
    'recluster_every': recluster_every,
    'init_shuffle': init_shuffle,
    'init_models': init_models == 'random',
  }.items():
    if asked and client_state != 'stacked':
      raise UserError(
        f'`{option}` needs the models of all clients on the devices: leave out '
        f'`client_state={client_state}`.'
      )
  if temperature and cluster_on != 'all':
    raise UserError(
      f'`temperature` compares all parameters: leave out `cluster_on={cluster_on}`.'
    )
  if temperature and aggregation != 'mean':
    raise UserError(
      f'`temperature` shares clients among centers: leave out `aggregation='
      f'{aggregation}`, to which a client counts or not.'
    )
  if late_joins and not init_clients > 0:
    raise UserError('`late_joins` needs the number of first clients, `init_clients`.')
  if late_joins and init_clients < num_clusters:
    raise UserError(
      f'`init_clients={init_clients}` with `late_joins` is too few for '
      f'`num_clusters={num_clusters}`; give one client for each cluster, at least.'
    )
