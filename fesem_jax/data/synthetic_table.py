"""Tables with planted groups of clients, of the shape of a user's own table."""

import numpy as np

from fesem_jax.data import synthetic
from fesem_jax.data.options import Options
from fesem_jax.data.partitions.groups import label_permutations
from fesem_jax.data.pool import Pool
from fesem_jax.tasks import CLASSIFICATION, REGRESSION
from fesem_jax.utils.errors import UserError, argument

DIFFERENCES = ('features', 'labels', 'models')
_SHARPNESS = 3.0  # Standard deviation of a logit, so that labels can be learned.


def load(
  rng: np.random.Generator,
  num_clients: int,
  examples: int,
  groups: np.ndarray,
  options: Options,
  task: str = '',
) -> Pool:
  """Clients of groups that differ in one respect.

  An example has F features z ~ N(0, I). Its label is argmax(W z + noise), of L classes,
  or of a regression w z + noise; W has entries of N(0, 9 / F). `synthetic_difference`
  says what the groups differ in, and `distance` is `synthetic_distance`:

  - 'features': z is measured as x = z + m_k, where m_k has the length `distance`, as by
    sensors of other offsets.
  - 'labels': group k has permuted labels; group 0 has the original ones.
  - 'models': W_k = W + `distance` D_k, D_k like W.

  Args:
    rng: random state.
    num_clients: M.
    examples: of each client; 0 draws 50 + lognormal(4, 2).
    groups: [M] group of each client.
    options: `synthetic_features` F, `synthetic_classes` L, `synthetic_difference`, of
      `DIFFERENCES`, `synthetic_distance`, `synthetic_noise`, a standard deviation, and
      `synthetic_mix`, the share of a client's examples that are of other groups, each
      at random.
    task: 'regression', or else classification.

  Raises:
    UserError: if labels are to differ in a regression, in more groups than they have
      permutations, or there would be too many features.
  """
  width, classes = options.synthetic_features, options.synthetic_classes
  difference, distance = options.synthetic_difference, options.synthetic_distance
  regression = task == REGRESSION.name
  if regression and difference == 'labels':
    raise UserError(
      f'{argument("synthetic_difference", difference)} is for classification; choose '
      'features or models.'
    )
  count = int(groups.max()) + 1
  outputs = 1 if regression else classes
  deviation = _SHARPNESS / np.sqrt(width)
  shared = rng.normal(0, deviation, (width, outputs))
  models, offsets = np.stack([shared] * count), np.zeros((count, width))
  tables = np.tile(np.arange(outputs), (count, 1))
  if difference == 'models':
    models = models + distance * rng.normal(0, deviation, models.shape)
  elif difference == 'features':
    offsets = rng.normal(size=offsets.shape)
    offsets *= distance / np.linalg.norm(offsets, axis=1, keepdims=True)
  else:
    tables = label_permutations(rng, count, classes, np.arange(classes))
  xs, ys = [], []
  sizes = synthetic.sizes(rng, num_clients, examples, width)
  for group, size in zip(groups, sizes, strict=True):
    others = (group + rng.integers(1, max(2, count), size)) % count
    of_row = np.where(rng.random(size) < options.synthetic_mix, others, group)
    z = rng.normal(size=(size, width))
    logits = np.einsum('tf,tfl->tl', z, models[of_row])
    logits += rng.normal(0, options.synthetic_noise, logits.shape)
    xs.append(z + offsets[of_row])
    ys.append(logits if regression else tables[of_row, logits.argmax(axis=1)])
  pool = synthetic.pool(xs, ys, outputs, groups)
  if not regression:
    return pool._replace(task=CLASSIFICATION.name)
  return pool._replace(y=np.concatenate(ys).astype(np.float32), task=task)
