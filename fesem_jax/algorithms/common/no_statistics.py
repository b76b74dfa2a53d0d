"""Methods that do more with models than train and average them."""

from fesem_jax.core.local_training import LocalTraining
from fesem_jax.utils.errors import UserError, argument


def check_no_statistics(local: LocalTraining, method: str) -> None:
  """Raises `UserError` if the model has running statistics, e.g. of BatchNorm.

  They are averaged, while the `method` moves or compares whole models otherwise.
  """
  if local.model.statistics:
    raise UserError(
      f'{argument("algorithm", method)} moves or compares models in ways that the '
      'running statistics of BatchNorm do not allow; choose a model with GroupNorm, '
      'e.g. resnet8, or a method that averages models, e.g. fed_avg, fesem or fed_bn.'
    )
