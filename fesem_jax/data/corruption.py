"""Bad clients: their selection, their attacks, and metrics of the honest clients.

A bad client lies about its labels or about its model. It lies in the same way to every
method, as `training.cohort.train_cohort` is where local models come from. What it keeps
for itself (layers of its own, and whole models that no server receives) stays as it was
trained, and so do the test examples of all clients.
"""

import dataclasses

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.federated_data import Corruption, FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.data import backdoor
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.errors import UserError, argument, check_share
from fesem_jax.utils.ranges import check_choice

KINDS = (
  'none', 'label_flip', 'sign_flip', 'noise', 'replacement:SCALE', 'backdoor:CLASS',
)  # fmt: skip
_WITH_NUMBER = ('replacement', 'backdoor')


def corrupted(
  train: FederatedData, corrupt: str, corrupt_fraction: float, seed: int = 0
) -> FederatedData:
  """Makes a fraction of the clients of a training split bad.

  Bad clients are drawn once, by client id; a larger fraction includes those of a
  smaller one. Hold out examples and clients before calling this function.

  Args:
    train: training split of M clients, on the host.
    corrupt: 'label_flip', a bad client trains on the labels in reverse order, L - 1 -
      y where all L labels have training examples, as labels without any stay so;
      'sign_flip', of the model w that it trained from a start s, it sends
      s - (w - s); 'noise', it sends s + |w - s| z / sqrt(P), where z are standard
      normal draws of each round and client: a random direction of about the length
      of its true change; 'replacement:C', it sends s + C (w - s), which replaces the
      mean of S clients for C = S (Bagdasaryan et al. 2020); 'backdoor:L', it trains on
      examples with a pattern and the label L, see `backdoor.poisoned`. One of
      'label_flip' and 'backdoor:L' and one of the others may be joined by +, such as
      'backdoor:0+replacement:10'. 'none' leaves the data as it is.
    corrupt_fraction: share of the clients that are bad, rounded to whole clients.
    seed: of the run.

  Raises:
    UserError: on an unknown kind, on one argument without the other, or unless at
      least one client would be bad and one honest.
  """
  corrupt = _checked(corrupt)
  check_share(corrupt_fraction=corrupt_fraction)
  if corrupt == 'none':
    if corrupt_fraction:
      raise UserError(
        f'{argument("corrupt_fraction", corrupt_fraction)} needs `corrupt`, '
        f'one of {", ".join(KINDS[1:])}.'
      )
    return train
  flips = 'label_flip' in corrupt.split('+')
  if flips and train.task != CLASSIFICATION.name:
    raise UserError(
      f'{argument("corrupt", corrupt)} needs labels of classes, but the data are for '
      f'{train.task}; choose `corrupt=sign_flip` or `corrupt=noise`.'
    )
  count = round(corrupt_fraction * train.num_clients)
  if not 0 < count < train.num_clients:
    raise UserError(
      f'{argument("corrupt_fraction", corrupt_fraction)} makes {count} of '
      f'{train.num_clients} clients bad; with {argument("corrupt", corrupt)} at least '
      'one must be bad, and at least one honest.'
    )
  by_id = np.argsort(np.asarray(train.client_ids), kind='stable')
  order = prng_streams.host_rng(seed, prng_streams.CORRUPT).permutation(
    train.num_clients
  )
  bad = np.zeros(train.num_clients, bool)
  bad[by_id[order[:count]]] = True
  x, y, corruption = train.x, np.asarray(train.y), Corruption(bad, corrupt)
  if corruption.backdoor is not None:
    x, y = backdoor.poisoned(train, bad, corruption.backdoor, seed)
  if flips:
    rows = np.repeat(bad, np.diff(np.asarray(train.offsets)))
    occur, places = np.unique(y, return_inverse=True)
    y = np.where(rows, occur[::-1][places], y).astype(y.dtype)
  return dataclasses.replace(train, x=x, y=y, corruption=corruption)


def _checked(corrupt: str) -> str:
  """The same text; `UserError` if it names no attack, or two of one sort."""
  if corrupt == 'none':
    return corrupt
  names = []
  for part in corrupt.split('+'):
    name, _, number = part.partition(':')
    known = name in [kind.partition(':')[0] for kind in KINDS[1:]]
    right = _is_number(name, number) if name in _WITH_NUMBER else part == name
    if not known:
      check_choice('corrupt', corrupt, KINDS)
    if not right:
      raise UserError(
        f'{argument("corrupt", corrupt)} must be one of {", ".join(KINDS)}, or one of '
        'data and one of models joined by +, with a SCALE above 0 and the number of a '
        'CLASS, e.g. backdoor:0+replacement:10.'
      )
    names.append(name)
  return corrupt


def _is_number(name: str, number: str) -> bool:
  """True if a text is a class of a backdoor, or the scale of a replacement."""
  if name == 'backdoor':
    return number.isdecimal() and len(number) < 10
  try:
    return 0 < float(number) < np.inf
  except ValueError:
    return False


def honest(train: FederatedData) -> np.ndarray | None:
  """[M] bool, clients that are not bad; None where no client is to be bad."""
  if train.corruption is None:
    return None
  return ~np.asarray(train.corruption.bad)


def check_models_only(
  train: FederatedData, local: LocalTraining, method: str, sent: str
) -> None:
  """Raises `UserError` if clients would have to send other things than their models.

  Bad clients would have to lie about them, and `local.sends` to change them. `sent`
  says in words what the clients of `method` send.
  """
  local.check_no_sends(method, sent)
  if train.corruption is not None and train.corruption.of_models:
    raise UserError(
      f'{argument("corrupt", train.corruption.kind)} is not defined for {method}, '
      f'whose clients send {sent}; choose `corrupt=label_flip`, or another method.'
    )
