"""FedBN: normalization layers stay with each client."""

from collections.abc import Sequence

from flax.traverse_util import flatten_dict

from fesem_jax.algorithms.common import personal_head
from fesem_jax.core import parameter_names
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.models.model_checks import check_parameters
from fesem_jax.utils.errors import check


@recorded
def fed_bn(local: LocalTraining, *, norm_layers: Sequence[str] = ()) -> Algorithm:
  """Builds FedBN (Li et al., "FedBN: Federated Learning on Non-IID Features via Local
  Batch Normalization", ICLR 2021).

    (b_i, s_i) <- SGD from (b, s_i) on client i       for i in the cohort
    b          <- mean_i b_i

  s_i are the scales and biases of client i's normalization layers, at any depth, and b
  all other parameters. It is FedPer with these layers as the head.

  Args:
    norm_layers: names of the normalization layers, or patterns such as **/norm*. None
      are those that have a parameter `scale`, as the layers of Flax do.
  """
  personal = _norms(local, norm_layers)
  return personal_head.averaging(local, personal, 'uniform')


def _norms(local: LocalTraining, names: Sequence[str]) -> tuple[str, ...]:
  params = check_parameters(local.model)
  if names:
    norms = parameter_names.chosen(params, names, 'norm_layers')
  else:
    paths = list(flatten_dict(params))
    layers = {path[:-1] for path in paths if path[-1] == 'scale'}
    norms = tuple('/'.join(path) for path in paths if path[:-1] in layers)
  check(norms, 'norm_layers: the model has no normalization layers')
  return norms
