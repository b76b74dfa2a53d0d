"""Selections of the clients of a round: a function, by loss, by availability."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, Index, check_arguments, checked


class Clients(NamedTuple):
  """The M clients before a round, in the order of the data."""

  names: np.ndarray  # [M] str
  sizes: np.ndarray  # [M] int training examples
  # Positions [n] -> [n] float64 mean training losses of the deployed models, which the
  # clients receive.
  losses: Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Selection:
  """The clients of each round, which a function on the host chooses.

  Attributes:
    clients_per_round: S, the most clients of a round; 0 is every client.
    choose: (number of the round from 1, rng, `Clients`) -> positions [<= S] of distinct
      clients. Random numbers come from `rng` alone, so that a resumed run chooses the
      same clients.
    name: identifies the selection in a workdir; by default the function's name.
  """

  clients_per_round: Index
  choose: Callable[[int, np.random.Generator, Clients], Iterable[int]]
  name: str = ''

  def __post_init__(self):
    check_arguments(Selection, vars(self))
    if not self.name:
      name = getattr(self.choose, '__qualname__', type(self.choose).__qualname__)
      object.__setattr__(self, 'name', name)

  def ids(self, number: int, rng: np.random.Generator, clients: Clients) -> np.ndarray:
    """[<= S] int64 positions of the clients of a round; may raise `UserError`."""
    chosen = np.array(list(self.choose(number, rng, clients)), np.int64)
    count = len(clients.names)
    fits = len(set(chosen) & set(range(count))) == len(chosen)
    fits = fits and len(chosen) <= (self.clients_per_round or count)
    check(fits, f'{self.name}: chose {chosen[:9]}, not distinct clients of a round')
    return chosen


def cohort_size(clients_per_round: float, num_clients: int) -> int:
  """S of a number of clients, or of a share of M below 1; `UserError` on 1.0."""
  if not isinstance(clients_per_round, float):
    return clients_per_round
  is_share = 0 < clients_per_round < 1
  check(is_share, 'clients_per_round: must be an integer, or a share below 1')
  return max(1, round(clients_per_round * num_clients))


def counted(
  clients_per_round: float | Selection, num_clients: int
) -> tuple[int, Selection | None]:
  """S and the selection of an argument `clients_per_round`, of M clients."""
  if isinstance(clients_per_round, Selection):
    return clients_per_round.clients_per_round, clients_per_round
  return cohort_size(clients_per_round, num_clients), None


@checked
def power_of_choice(clients_per_round: Count, *, candidates: int) -> Selection:
  """Selection by loss (Cho et al. 2020, "pow-d").

  Each round draws d = `candidates` by their numbers of examples; the S with the largest
  losses take part. The paper averages by `weighting='uniform'`. Raises `UserError`
  unless S <= d and, in the first round, d <= M.
  """
  check(candidates >= clients_per_round, 'candidates: fewer than clients_per_round')

  def choose(number: int, rng: np.random.Generator, clients: Clients) -> np.ndarray:
    count = len(clients.sizes)
    check(candidates <= count, f'candidates: more than the {count} clients')
    sizes = clients.sizes.astype(np.float64)
    drawn = rng.choice(count, candidates, replace=False, p=sizes / sizes.sum())
    losses = np.nan_to_num(clients.losses(drawn), nan=np.inf, posinf=np.inf)
    order = np.lexsort((rng.random(candidates), -losses))
    return drawn[order[:clients_per_round]]

  name = f'power_of_choice({clients_per_round}, candidates={candidates})'
  return Selection(clients_per_round, choose, name)


@checked
def available(
  clients_per_round: Index, trace: Sequence[tuple[str, float, float]]
) -> Selection:
  """Selection by availability: a uniform draw of S available clients (0: all).

  `trace` has (name, first round, last round) from 1, any number for each client. Rounds
  without clients change nothing. Raises `UserError` in the first round on other names.
  """
  rows = sorted((str(name), float(first), float(last)) for name, first, last in trace)

  def choose(number: int, rng: np.random.Generator, clients: Clients) -> np.ndarray:
    others = {name for name, *_ in rows} - set(clients.names.astype(str))
    check(not others, f'trace: no client is called {"".join(sorted(others)[:1])!r}')
    present = [name for name, first, last in rows if first <= number <= last]
    ids = np.flatnonzero(np.isin(clients.names, present))
    if 0 < clients_per_round < len(ids):
      ids = rng.choice(ids, clients_per_round, replace=False)
    return ids

  digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
  name = f'available({clients_per_round}, {digest})'
  return Selection(clients_per_round, choose, name)
