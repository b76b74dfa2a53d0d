"""Multi-center (clustered) federated learning, simulated in JAX.

The names below are the public surface; `fesem_jax.plots` needs matplotlib and
is imported on its own.
"""

from fesem_jax import algorithms, data, models
from fesem_jax.base import ClientInfo, Cohort, FederatedData, Model
from fesem_jax.batching import Schedule
from fesem_jax.errors import UserError
from fesem_jax.local_sgd import LocalTraining, local_training
from fesem_jax.method import Algorithm, ClientModels, RoundInfo
from fesem_jax.sharding import client_mesh, setup_devices
from fesem_jax.simulate import Result, simulate

__all__ = [
  'Algorithm',
  'ClientInfo',
  'ClientModels',
  'Cohort',
  'FederatedData',
  'LocalTraining',
  'Model',
  'Result',
  'RoundInfo',
  'Schedule',
  'UserError',
  'algorithms',
  'client_mesh',
  'data',
  'local_training',
  'models',
  'setup_devices',
  'simulate',
]
