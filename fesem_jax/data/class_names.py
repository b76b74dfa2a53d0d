"""Names of classes in figures, and the most frequent classes."""

import string
from collections.abc import Mapping, Sequence

import numpy as np

from fesem_jax.data.text import VOCABULARY

_NAMES: Mapping[str, Sequence[str]] = {
  'cifar10': (
    *('airplane', 'automobile', 'bird', 'cat', 'deer'),
    *('dog', 'frog', 'horse', 'ship', 'truck'),
  ),
  'femnist': string.digits + string.ascii_uppercase + string.ascii_lowercase,
  'shakespeare': ('line break', 'space', *VOCABULARY[2:-1], 'unknown'),
}


def class_names(
  dataset: str, num_classes: int, given: Sequence[str] | np.ndarray | None = None
) -> Sequence[str]:
  """Names of the L classes of a data set, which is named as for `data.load`.

  `given` are those that the data themselves have, if any. Returns numbers from 0 where
  the data set has no names or another L.
  """
  names = _NAMES.get(dataset, ()) if given is None else [str(name) for name in given]
  return names if len(names) == num_classes else [str(i) for i in range(num_classes)]


def most_frequent(
  counts: np.ndarray, names: Sequence[str], limit: int
) -> tuple[np.ndarray, list[str]]:
  """The most frequent classes, and the sum of all others.

  Args:
    counts: [M, L] examples of each class on each client.
    names: L names of the classes.
    limit: most classes to keep.

  Returns:
    [M, L] and L names if L is at most `limit`; otherwise [M, limit + 1] and limit + 1
    names, the last of them "n others". Classes stay in their order.
  """
  if counts.shape[1] <= limit:
    return counts, list(names)
  order = np.argsort(-counts.sum(axis=0), kind='stable')
  top, others = np.sort(order[:limit]), order[limit:]
  of_others = counts[:, others].sum(axis=1, keepdims=True)
  kept = [*(names[i] for i in top), f'{len(others)} others']
  return np.concatenate([counts[:, top], of_others], axis=1), kept
