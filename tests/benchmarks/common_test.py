"""The benchmarks measure what they say; their speed is not tested."""

import jax
import pytest
from flax.traverse_util import flatten_dict

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
  epochs = 5 if name in ('W6', 'W9') else 1
  assert workload.steps(3) == epochs * sum(-(-n // workload.batch_size) for n in sizes)
