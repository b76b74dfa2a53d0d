"""Windows of a text that overlap with windows of the other split."""

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.tasks import SEQUENCE
from fesem_jax.utils.notices import warn_once

_LEAST = 16  # Tokens; shorter sequences may be alike by chance.
_CLIENTS, _EXAMPLES, _ROWS = 5, 4, 20_000  # That are looked at, of each client.


def warn_of_overlap(train: FederatedData, held: FederatedData, named: str) -> None:
  """Says once that sequences overlap with training sequences of their client.

  Windows of a text that begin less than a window apart have targets in common, which
  are then trained on. Some of the sequences are looked at, for overlaps of half or
  more. `held` is the test or validation split of the clients of `train`, on the host;
  `named` is what it is called.
  """
  of_arrays = all(isinstance(split.x, np.ndarray) for split in (train, held))
  if train.task != SEQUENCE.name or not of_arrays or train.y.shape[1] < _LEAST:
    return
  half, overlaps = train.y.shape[1] // 2, list[bool]()
  for client in np.flatnonzero(np.asarray(held.sizes()) > 0)[:_CLIENTS].tolist():
    trained = np.ascontiguousarray(train.client(client)[1][:_ROWS]).tobytes()
    for y in held.client(client)[1][:_EXAMPLES]:
      ends = [end for end in (y[:half], y[-half:]) if (end != end[0]).any()]
      overlaps.append(any(end.tobytes() in trained for end in ends))
  if overlaps and np.mean(overlaps) > 0.5:
    warn_once(
      f'{named}: sequences overlap with training sequences of the same client, so that '
      'their targets are trained on; figures on them do not show learning. Give '
      'windows that do not overlap, e.g. by `text_stride=80`.'
    )
