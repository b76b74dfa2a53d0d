"""Multi-center (clustered) federated learning, simulated in JAX.

The names below are the public surface; `fesem_jax.plots` needs matplotlib and
is imported on its own.
"""

from fesem_jax import algorithms, data, models, tasks, testing
from fesem_jax.algorithms import wrappers
from fesem_jax.analysis.comparing import compare
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.analysis.joining import adapt, join
from fesem_jax.analysis.num_clusters import select_k
from fesem_jax.analysis.report.page import write_report
from fesem_jax.analysis.tuning import Search
from fesem_jax.core import selection, sums, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels, Clusters, RoundInfo
from fesem_jax.core.batching import Schedule
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining, Machine, local_training
from fesem_jax.core.sampling import cohort_of, everyone, sample_clients
from fesem_jax.core.sending import Sends, chained
from fesem_jax.core.sharding import client_mesh, setup_devices, split_clients
from fesem_jax.core.traffic import Traffic
from fesem_jax.core.types import Cohort, Model
from fesem_jax.data import attacks, partitions
from fesem_jax.run import callbacks
from fesem_jax.run.callbacks import loggers
from fesem_jax.run.callbacks.callback import Callback, Stop
from fesem_jax.run.results.deployed_models import DeployedModels
from fesem_jax.run.results.frames import Frames, load_runs
from fesem_jax.run.results.result import Result, Run, load_run
from fesem_jax.run.simulation import simulate, simulate_many
from fesem_jax.run.spec import Workdir
from fesem_jax.server import em
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.kmeans import kmeans
from fesem_jax.server.robust import aggregation
from fesem_jax.training.augmentation import Augmentation, augmentation
from fesem_jax.training.client_losses import cohort_losses
from fesem_jax.training.cohort import for_each_client, train_cohort
from fesem_jax.training.compression import compression
from fesem_jax.training.local_sgd import local_sgd, plus, toward
from fesem_jax.training.one_client import Client, for_each_batch
from fesem_jax.training.optimizers import local_optimizer
from fesem_jax.training.privacy import differential_privacy
from fesem_jax.training.trained import Reduction, Trained
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.processes import initialize
from fesem_jax.utils.version import __version__

__all__ = [
  'Algorithm',
  'Augmentation',
  'Callback',
  'Client',
  'ClientInfo',
  'ClientModels',
  'Clusters',
  'Cohort',
  'Comparison',
  'DeployedModels',
  'FederatedData',
  'Frames',
  'LocalTraining',
  'Machine',
  'Model',
  'Reduction',
  'Result',
  'RoundInfo',
  'Run',
  'Schedule',
  'Search',
  'Sends',
  'Stop',
  'Traffic',
  'Trained',
  'UserError',
  'Workdir',
  '__version__',
  'adapt',
  'aggregation',
  'algorithms',
  'attacks',
  'augmentation',
  'callbacks',
  'chained',
  'client_mesh',
  'cohort_losses',
  'cohort_of',
  'compare',
  'compression',
  'data',
  'differential_privacy',
  'em',
  'everyone',
  'for_each_batch',
  'for_each_client',
  'initialize',
  'join',
  'kmeans',
  'load_run',
  'load_runs',
  'local_optimizer',
  'local_sgd',
  'local_training',
  'loggers',
  'models',
  'partitions',
  'plus',
  'sample_clients',
  'select_k',
  'selection',
  'server_optimizers',
  'setup_devices',
  'simulate',
  'simulate_many',
  'split_clients',
  'sums',
  'tasks',
  'testing',
  'toward',
  'train_cohort',
  'tree',
  'variable',
  'wrappers',
  'write_report',
]


def __dir__() -> list[str]:
  return __all__
