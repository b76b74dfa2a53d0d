"""Selections of the clients of a round: by name, by loss, by availability.

`simulate(..., clients_per_round=power_of_choice(10, candidates=30))` takes one in place
of the number of a uniform draw.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.ranges import Count, Index, check_arguments, checked

Unit = Literal['rounds', 'seconds']


class BeforeRound(NamedTuple):
  """The view of a selection before a round; M clients in the order of the data.

  Attributes:
    number: of the round, from 1.
    rng: random numbers of the seed and the round.
    names: [M] str.
    sizes: [M] int training examples.
    records: of the rounds before, as in metrics.jsonl.
    losses: places [n] among the clients -> [n] float64 mean training losses of the
      models that they deploy.
  """

  number: int
  rng: np.random.Generator
  names: np.ndarray
  sizes: np.ndarray
  records: Sequence[dict[str, Any]]
  losses: Callable[[np.ndarray], np.ndarray]


class Chosen(NamedTuple):
  """The clients of a round, and what finding them took.

  Attributes:
    clients: [<= S] places among the clients, or names.
    candidates: clients that got their model and sent its loss.
    waited: simulated seconds before the round could begin.
  """

  clients: Any
  candidates: int = 0
  waited: float = 0.0


@dataclasses.dataclass(frozen=True)
class Selection:
  """The clients of each round, which a function of the host chooses.

  Equal selections of one seed must choose alike, also after a resumption: random
  numbers come from `BeforeRound.rng`.

  Attributes:
    clients_per_round: S, the most clients of a round; 0 is every client.
    choose: (`BeforeRound`) -> places [<= S] of distinct clients in the order of the
      data, their names, or `Chosen`.
    name: what identifies the selection in a workdir; by default the function's name.
  """

  clients_per_round: Index
  choose: Callable[[BeforeRound], Any]
  name: str = ''

  def __post_init__(self):
    check_arguments(Selection, vars(self))
    if not self.name:
      name = getattr(self.choose, '__qualname__', type(self.choose).__qualname__)
      object.__setattr__(self, 'name', name)

  def chosen(self, before: BeforeRound) -> tuple[np.ndarray, dict[str, Any]]:
    """Places of the clients of a round, and what the round's record says of them.

    Raises `UserError` if `choose` returns something else.
    """
    choice = self.choose(before)
    if not isinstance(choice, Chosen):
      choice = Chosen(choice)
    places = places_of(choice.clients, before.names)
    most = self.clients_per_round or len(before.names)
    check(len(places) <= most, f'{self.name}: chose {len(places)} clients, not {most}')
    of_round = {'candidates': choice.candidates, 'waited_seconds': choice.waited}
    return places, {name: value for name, value in of_round.items() if value}


def counted(clients_per_round: int | Selection) -> tuple[int, Selection | None]:
  """S and the selection of an argument `clients_per_round`."""
  if isinstance(clients_per_round, Selection):
    return clients_per_round.clients_per_round, clients_per_round
  return clients_per_round, None


def places_of(clients: Any, names: np.ndarray) -> np.ndarray:
  """[n] int places of distinct clients, from places or names; `names` are [M].

  Raises `UserError` on what is no client, or is there twice.
  """
  chosen = np.asarray(list(clients))
  if chosen.dtype.kind in 'OU':
    by_name: dict[str, list[int]] = {}
    for place, name in enumerate(names):
      by_name.setdefault(str(name), []).append(place)
    for name in map(str, chosen):
      count = len(by_name.get(name, ()))
      check(count == 1, f'selection: {count} clients are called {name!r}')
    chosen = np.array([by_name[str(name)][0] for name in chosen], np.int64)
  outside = chosen[(chosen < 0) | (chosen >= len(names))]
  check(not len(outside), f'selection: places {outside[:3]} are not below {len(names)}')
  check(len(np.unique(chosen)) == len(chosen), 'selection: has a client twice')
  return chosen.astype(np.int64)


@checked
def power_of_choice(clients_per_round: Count, *, candidates: int) -> Selection:
  """Selection by loss (Cho et al. 2020, "pow-d").

  In each round, d candidates are drawn without replacement, with probabilities
  proportional to their numbers of training examples; of them, those take part whose
  loss, on their training examples, of the model that they deploy is largest. Ties are
  broken at random. With d = S, this draws clients by their size. The paper averages the
  models of a round alike, by `weighting='uniform'` of a method.

  Args:
    clients_per_round: S.
    candidates: d, from S to M.

  Raises:
    UserError: unless S <= d; in the first round, if d is more than the clients.
  """
  check(candidates >= clients_per_round, 'candidates: fewer than clients_per_round')

  def choose(before: BeforeRound) -> Chosen:
    sizes = before.sizes.astype(np.float64)
    check(candidates <= len(sizes), f'candidates: more than the {len(sizes)} clients')
    drawn = before.rng.choice(
      len(sizes), candidates, replace=False, p=sizes / sizes.sum()
    )
    losses = before.losses(drawn)
    losses = np.where(np.isnan(losses), np.inf, losses)
    order = np.lexsort((before.rng.random(candidates), -losses))
    return Chosen(drawn[order[:clients_per_round]], candidates)

  name = f'power_of_choice({clients_per_round}, candidates={candidates})'
  return Selection(clients_per_round, choose, name)


@checked
def named(clients: Sequence[str], clients_per_round: Index = 0) -> Selection:
  """Selection of some clients by name: all of them, or a uniform draw of S in a round.

  The others train in no round; they are evaluated as all clients, and take part in what
  a method does before the first round, as the first clusters of FeSEM.

  Raises:
    UserError: if S is more; in the first round, on a name of no client, or a name that
      is there twice.
  """
  clients = [str(name) for name in clients]
  count = clients_per_round or len(clients)
  check(count <= len(clients), f'clients_per_round: only {len(clients)} are named')

  def choose(before: BeforeRound) -> np.ndarray:
    places = np.sort(places_of(clients, before.names))
    if count == len(places):
      return places
    return before.rng.choice(places, count, replace=False)

  return Selection(count, choose, f'named({count}, {_digest(sorted(clients))})')


@checked
def available(
  clients_per_round: Index,
  trace: Sequence[tuple[str, float, float]],
  *,
  unit: Unit = 'rounds',
) -> Selection:
  """Selection by availability: a uniform draw of the clients that are there.

  A round takes all that are available if they are fewer than S. In rounds, one without
  any changes nothing. In simulated seconds, which a device profile gives
  (`callbacks.Costs`), the server waits until one is there, and the record of the round
  has these `waited_seconds`, which its `simulated_seconds` include; a client that is
  there as a round begins stays to its end.

  Args:
    clients_per_round: S; 0 takes all that are available.
    trace: (name of the client, from, to), any number for each; clients without any are
      never available.
    unit: of from and to: 'rounds', counted from 1, `to` included, or 'seconds' since
      the first round began, `to` excluded.

  Raises:
    UserError: on an interval that is empty or not finite; in the first round, on a name
      of no client.
  """
  rows = sorted((str(name), float(first), float(last)) for name, first, last in trace)
  in_rounds = unit == 'rounds'
  for name, first, last in rows:
    ends_later = first < last or (in_rounds and first == last)
    sound = ends_later and math.isfinite(first) and math.isfinite(last)
    check(sound, f'trace: {name} has no interval from {first:g} to {last:g}')
  own_names = sorted({name for name, *_ in rows})
  begins, ends = (np.array([row[i] for row in rows]) for i in (1, 2))

  def at(time: float) -> np.ndarray:
    return (begins <= time) & ((time <= ends) if in_rounds else (time < ends))

  def choose(before: BeforeRound) -> Chosen:
    places_of(own_names, before.names)  # Raises on a name of no client.
    time, waited = float(before.number), 0.0
    if not in_rounds:
      time = _clock(before.records)
    there = at(time)
    if not in_rounds and not there.any():
      later = begins[begins > time]
      if not len(later):
        raise UserError(f'trace: ends after {time:g} s, before round {before.number}')
      waited = float(later.min() - time)
      there = at(float(later.min()))
    present = sorted({rows[i][0] for i in np.flatnonzero(there)})
    places = np.sort(places_of(present, before.names))
    if 0 < clients_per_round < len(places):
      places = before.rng.choice(places, clients_per_round, replace=False)
    return Chosen(places, waited=waited)

  name = f'available({clients_per_round}, {unit}, {_digest(rows)})'
  return Selection(clients_per_round, choose, name)


def _clock(records: Sequence[dict[str, Any]]) -> float:
  """Simulated seconds of all rounds so far."""
  rounds = [record for record in records if record['round']]
  times = [t for r in rounds if (t := r.get('simulated_seconds')) is not None]
  timed = len(times) == len(rounds)
  check(timed, 'trace: seconds need simulated rounds; give device_profile (Costs)')
  return float(sum(times))


def _digest(rows: Any) -> str:
  return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
