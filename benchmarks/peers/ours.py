"""fesem_jax as a peer of the others."""

import os
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from benchmarks import common
from benchmarks.peers import worker
from benchmarks.workloads import Workload
from fesem_jax.algorithms.common import global_model
from fesem_jax.algorithms.common.global_model import Averaging
from fesem_jax.core import sharding, tree
from fesem_jax.core.local_training import Precision
from fesem_jax.utils import provenance


class Ours:
  """FedAvg's round, clients split over one device per core, or on an accelerator."""

  precision: Precision = 'highest'

  def __init__(self, workload: Workload, x: Any, y: Any, sizes: Any):
    self._workload = workload
    mesh = sharding.client_mesh()
    self._train = common.place(workload, x, y, sizes, mesh)
    local = common.training(workload, mesh)
    local = local._replace(precision=self.precision)
    start = tree.expand(common.params_of(workload, local.model))
    self._start = sharding.replicate(start, mesh)
    self.start = _arrays(workload, self._start)
    cohort = common.everyone(self._train)

    @jax.jit
    def step(start, train, key):
      state, _ = global_model.train_and_average(
        local,
        global_model.GlobalState(start),
        train,
        cohort,
        key,
        Averaging('by_examples'),
      )
      return state.params

    self._step = step
    self._rounds = 0

  def round(self) -> None:
    self._rounds += 1
    key = jax.random.key(self._rounds)
    self._mean = jax.block_until_ready(self._step(self._start, self._train, key))

  def mean(self) -> list[np.ndarray]:
    return _arrays(self._workload, self._mean)


def _arrays(workload: Workload, params: Any) -> list[np.ndarray]:
  """One model's arrays in the order of `Workload.initial`."""
  arrays = flatten_dict(params, sep='/')
  return [np.asarray(arrays[name][0]) for name in workload.shapes()]


if __name__ == '__main__':
  common.setup()
  if 'JAX_COMPILATION_CACHE_DIR' in os.environ:
    jax.config.update('jax_enable_compilation_cache', True)
  worker.serve(worker.Worker(Ours).answer, provenance.versions())
