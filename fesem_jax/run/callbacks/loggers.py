"""Loggers: callbacks that send the numbers of a run to other programs."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.callbacks.ml_flow import MLflow
from fesem_jax.run.callbacks.tensorboard import TensorBoard
from fesem_jax.run.callbacks.weights_and_biases import WeightsAndBiases
from fesem_jax.utils.ranges import check_choice

LOGGERS: Mapping[str, Callable[[], Callback]] = MappingProxyType(
  {'tensorboard': TensorBoard, 'wandb': WeightsAndBiases, 'mlflow': MLflow}
)


def build(names: Iterable[str]) -> list[Callback]:
  """The loggers with these names, keys of `LOGGERS`, each once.

  Raises `UserError` on an unknown name, or if a package is not installed.
  """
  for name in names:
    check_choice('log_to', name, tuple(LOGGERS))
  return [LOGGERS[name]() for name in dict.fromkeys(names)]
