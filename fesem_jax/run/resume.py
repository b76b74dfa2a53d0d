"""The digest of a run's data, and the state from which it resumes."""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.checkpoint import Checkpoints
from fesem_jax.run.programs import Program
from fesem_jax.utils import processes, progress_lines
from fesem_jax.utils.errors import WorkdirError


def digest_of_data(
  *splits: FederatedData, here: Sequence[np.ndarray | None] | None = None
) -> str:
  """A digest that differs when any example, label or client does.

  Splits are on the host, as they were loaded. For each, `here` is [M] bool, the clients
  whose examples this process has; other processes have the rest, and all of them call
  this. None where every process has all.
  """
  digest = hashlib.sha256()
  for split in splits:
    truth, attack = split.info.clusters, split.attack
    for array in (
      split.y,
      split.offsets,
      split.client_ids,
      np.asarray(split.info.names).astype(str),
      np.array([]) if truth is None else truth,
      *([] if attack is None else [attack.bad, np.array([repr(attack.kinds)])]),
      *([] if split.weights is None else [split.weights]),
      *(split.server_test or ()),
      *_own_groups(split),
    ):
      array = np.ascontiguousarray(array)
      digest.update(f'{array.dtype} {array.shape}'.encode())
      digest.update(array.view(np.uint8).data)
    kind = f'{split.x.dtype} {split.example_shape}'
    kind = f'{kind} {split.num_classes} {split.scale} {split.task}'
    digest.update(kind.encode())
  here = here or [None] * len(splits)
  if any(own is not None for own in here):  # Or their arrays could not be added up.
    processes.check_same('its clients', digest.hexdigest())
  for split, own in zip(splits, here, strict=True):
    digest.update(_digests_of_examples(split, own).data)
  return digest.hexdigest()[:16]


def _own_groups(split: FederatedData) -> list[np.ndarray]:
  """The groups [M] of an oracle, where they are not the true clusters."""
  if split.groups is None:
    return []
  ids, truth = np.asarray(split.groups.ids), split.info.clusters
  if truth is not None:
    mine, known = (np.unique(x, return_inverse=True)[1] for x in (ids, truth))
    if np.array_equal(mine, known):
      return []
  return [ids]


def _digests_of_examples(split: FederatedData, own: np.ndarray | None) -> np.ndarray:
  """[M, 16] uint8 digests of each client's examples."""
  offsets = np.asarray(split.offsets)
  digests = np.zeros((split.num_clients, 16), np.uint8)
  for i in range(split.num_clients) if own is None else np.flatnonzero(own):
    rows = np.ascontiguousarray(split.x[offsets[i] : offsets[i + 1]])
    digest = hashlib.sha256(rows.view(np.uint8).data).digest()
    digests[i] = np.frombuffer(digest, np.uint8)[:16]
  return digests if own is None else processes.total(digests)


def begin(
  start: Callable[[], Program],
  key: jax.Array,
  train: FederatedData,
  like: Any,
  checkpoints: Checkpoints | None,
  rounds: int,
) -> tuple[Any, int, float]:
  """The state that a run starts from or continues from, and the rounds done before.

  The third result is the seconds that the initialization took besides compiling.
  `start` compiles the initialization, `key` is its stream, and `train` is as arranged.
  `like` has shapes and shardings of the state, from `rehearse`; `checkpoints` is None
  without a workdir, and `rounds` is the number of rounds of the whole run.
  """
  latest = None if checkpoints is None else checkpoints.latest_round()
  if checkpoints is None or latest is None:
    init = start()
    began = time.perf_counter()
    with progress_lines.waiting_for('first models and clusters'):
      state = jax.block_until_ready(init(key, train))
    return state, 0, time.perf_counter() - began
  if latest > rounds:
    raise WorkdirError(f'rounds: the workdir holds {latest}, more than {rounds}')
  return *checkpoints.restore(like), 0.0
