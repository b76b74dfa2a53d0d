r"""Seconds of a round of clients of very unequal sizes, beside those of its parts.

  python -m benchmarks.unequal_sizes
  python -m benchmarks.unequal_sizes --models=logistic --save=False

A part has clients of like sizes, up to a factor of four, and its rounds are those of a
federation of its own: the sum of their seconds is what unequal sizes should cost.
"""

from typing import Any

import jax
import numpy as np
import optax
from absl import app, flags

import fesem_jax as fj
from benchmarks import common
from fesem_jax.core.arrangement import arrange

COLUMNS = (
  'sizes', 'model', 'clients', 'largest', 'examples', 'seconds', 'parts', 'ratio',
)  # fmt: skip

_MODELS = flags.DEFINE_list('models', ['logistic', 'mlp'], 'Of `fj.models.build`.')
_SIZES = flags.DEFINE_list('sizes', ['one_large', 'power_law'], 'Of this benchmark.')
_METHOD = flags.DEFINE_string('method', 'fed_avg', 'A method, with its defaults.')
_EPOCHS = flags.DEFINE_integer('local_epochs', 1, 'Local epochs of a round.')
_ROUNDS = flags.DEFINE_integer(
  'rounds', 5, 'Timings, each of which fills half a second.'
)
_SAVE = flags.DEFINE_bool('save', True, 'Whether the numbers are added to the results.')


def sizes_of(name: str) -> np.ndarray:
  """[M] examples of each client."""
  if name == 'one_large':
    return np.array([10] * 499 + [15_000])
  assert name == 'power_law', name
  drawn = 10 * (1 + np.random.default_rng(0).pareto(1.2, 1000))
  return np.minimum(drawn, 15_000).astype(int)


def like_sizes(sizes: np.ndarray) -> list[np.ndarray]:
  """The sizes of each part."""
  groups = np.log2(sizes / sizes.min()).astype(int) // 2
  return [sizes[groups == g] for g in np.unique(groups)]


def seconds(sizes: np.ndarray, model: str, mesh: Any) -> float:
  """Least seconds of a round."""
  rng = np.random.default_rng(1)
  x = rng.normal(size=(sizes.sum(), 64)).astype(np.float32)
  y = rng.integers(0, 10, len(x))
  data = fj.FederatedData.from_arrays(x, y, sizes, num_classes=10)
  local = fj.local_training(
    fj.models.build(model, data.example_shape, data.num_classes),
    optax.sgd(0.01),
    epochs=_EPOCHS.value,
    machine=fj.Machine(mesh=mesh),
  )
  algorithm = fj.algorithms.build(_METHOD.value, local)
  train, _ = arrange(local, data, data)
  state = jax.jit(algorithm.init)(jax.random.key(0), train)
  step, cohort = jax.jit(algorithm.step), fj.everyone(train)

  def round() -> Any:
    return step(state, train, cohort, jax.random.key(1))

  return common.repeat(round, _ROUNDS.value)['least_seconds']


def measure(name: str, model: str, mesh: Any) -> dict[str, Any]:
  """The row of some sizes and a model."""
  sizes = sizes_of(name)
  parts = [seconds(part, model, mesh) for part in like_sizes(sizes)]
  together = seconds(sizes, model, mesh)
  return {
    'sizes': name, 'model': model, 'method': _METHOD.value,
    'local_epochs': _EPOCHS.value, 'clients': len(sizes), 'largest': int(sizes.max()),
    'examples': int(sizes.sum()), 'seconds': together, 'parts': sum(parts),
    'ratio': together / sum(parts),
  }  # fmt: skip


def main(argv: list[str]) -> None:
  """Prints a row for each case."""
  del argv
  mesh, rows = common.setup(), []
  for name in _SIZES.value:
    for model in _MODELS.value:
      rows.append(measure(name, model, mesh))
      print(common.table(rows[-1:], COLUMNS), flush=True)
  if _SAVE.value:
    common.save('unequal_sizes', mesh, rows)


if __name__ == '__main__':
  app.run(main)
