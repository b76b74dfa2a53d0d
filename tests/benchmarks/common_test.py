"""The benchmarks measure what they say; their speed is not tested."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from benchmarks import common
from benchmarks.workloads import WORKLOADS
from fesem_jax import models


@pytest.mark.parametrize('name', WORKLOADS)
def test_work_loads_describe_the_models_they_name(name):
  workload = WORKLOADS[name]
  model = models.build(
    workload.network, workload.example_shape, workload.num_classes, workload.hidden
  )
  like = jax.eval_shape(model.init, jax.random.key(0))
  shapes = {name: leaf.shape for name, leaf in flatten_dict(like, sep='/').items()}
  assert shapes == workload.shapes()
  x, y, sizes = workload.arrays(3)
  assert len(x) == len(y) == sizes.sum()
  epochs = 5 if name == 'W6' else 1
  assert workload.steps(3) == epochs * sum(-(-n // workload.batch_size) for n in sizes)


def test_useful_share_counts_padding():
  steps = np.array([10, 4, 6, 2])
  assert common.useful_share(steps, 1, 1) == 1
  assert common.useful_share(steps, 1, 2) == 22 / 28  # (10, 6), (4, 2).
  assert common.useful_share(steps, 2, 2) == 22 / 32  # (10, 4), (6, 2).
