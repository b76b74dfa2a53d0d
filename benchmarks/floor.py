"""Operations and bytes of a work load's SGD step, counted by its layers."""

import math

from benchmarks.workloads import Workload


def operations(workload: Workload) -> int:
  """Additions and multiplications of a step's products.

  Args:
    workload: its batch is full.

  Returns:
    Of forward products, kernels' gradients and inputs' gradients but the first layer's.
  """
  kernels = [
    layer.places * math.prod(shape)
    for layer in workload.layers()
    for shape in layer.shapes.values()
    if len(shape) > 1
  ]
  # The first kernel's input has no gradient; a table of vectors has no products.
  return 2 * workload.batch_size * (3 * sum(kernels) - kernels[0])


def bytes_moved(workload: Workload) -> int:
  """Bytes of parameters that a step reads and writes."""
  kernels = [math.prod(s) for s in workload.shapes().values() if len(s) > 1]
  others = [s[0] for s in workload.shapes().values() if len(s) == 1]
  # Biases and scales meet each example once and are updated.
  return 4 * (4 * sum(kernels) - kernels[0] + 3 * sum(others))
