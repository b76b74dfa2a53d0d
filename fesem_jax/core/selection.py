"""Selections of the clients of a round: by name, by loss, by availability.

`simulate(..., clients_per_round=power_of_choice(10, candidates=30))` takes one in place
of the number of a uniform draw.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fesem_jax.utils.errors import UserError, argument, check_at_least, check_choice

UNITS = ('rounds', 'seconds')


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
    check: [M] names -> None; raises `UserError` where the clients do not fit.
  """

  clients_per_round: int
  choose: Callable[[BeforeRound], Any]
  name: str = ''
  check: Callable[[np.ndarray], None] = lambda names: None

  def __post_init__(self):
    check_at_least(0, clients_per_round=self.clients_per_round)
    if not callable(self.choose):
      raise UserError('`choose` of a Selection must be a function of `BeforeRound`.')
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
    if len(places) > most:
      raise UserError(
        f'`choose` of the selection {self.name} returned {len(places)} clients for '
        f'round {before.number}; the most are {argument("clients_per_round", most)}.'
      )
    of_round = {'candidates': choice.candidates, 'waited_seconds': choice.waited}
    return places, {name: value for name, value in of_round.items() if value}


def counted(clients_per_round: Any) -> tuple[int, Selection | None]:
  """S and the selection of an argument `clients_per_round`, a number or a `Selection`.

  Raises `UserError` if it is a function alone.
  """
  if isinstance(clients_per_round, Selection):
    return clients_per_round.clients_per_round, clients_per_round
  if callable(clients_per_round):
    raise UserError(
      '`clients_per_round` is a function; say how many clients it returns at most, as '
      '`clients_per_round=fj.selection.Selection(10, function)`.'
    )
  return clients_per_round, None


def places_of(clients: Any, names: np.ndarray) -> np.ndarray:
  """[n] int places of distinct clients, from places or names; `names` are [M].

  Raises `UserError` on what is no client, or is there twice.
  """
  given = np.asarray(list(clients))
  if given.dtype.kind in 'OU':
    by_name: dict[str, list[int]] = {}
    for place, name in enumerate(names):
      by_name.setdefault(str(name), []).append(place)
    for name in map(str, given):
      if len(by_name.get(name, ())) != 1:
        count = len(by_name.get(name, ()))
        raise UserError(
          f'The selection of clients names {name!r}: {count or "no"} clients are '
          f'called so; the clients are {", ".join(map(str, names[:3]))}, ...'
        )
    given = np.array([by_name[str(name)][0] for name in given], np.int64)
  if given.ndim != 1 or (given.size and given.dtype.kind not in 'iu'):
    raise UserError(
      'A selection of clients must be a list of their places, from 0, or of their '
      f'names; it is {given.dtype} of shape {given.shape}.'
    )
  if given.size and not 0 <= given.min() <= given.max() < len(names):
    raise UserError(
      f'The selection of clients has places {given.min()} to {given.max()}; the '
      f'{len(names)} clients have places 0 to {len(names) - 1}.'
    )
  if len(np.unique(given)) < len(given):
    raise UserError('The selection of clients has a client twice.')
  return given.astype(np.int64)


def power_of_choice(clients_per_round: int, *, candidates: int) -> Selection:
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
    UserError: unless 0 < S <= d.
  """
  check_at_least(1, clients_per_round=clients_per_round)
  check_at_least(clients_per_round, candidates=candidates)

  def check(names: np.ndarray) -> None:
    if candidates > len(names):
      raise UserError(
        f'{argument("candidates", candidates)} of power_of_choice are more than the '
        f'{len(names)} clients.'
      )

  def choose(before: BeforeRound) -> Chosen:
    sizes = before.sizes.astype(np.float64)
    drawn = before.rng.choice(
      len(sizes), candidates, replace=False, p=sizes / sizes.sum()
    )
    losses = before.losses(drawn)
    losses = np.where(np.isnan(losses), np.inf, losses)
    order = np.lexsort((before.rng.random(candidates), -losses))
    return Chosen(drawn[order[:clients_per_round]], candidates)

  name = f'power_of_choice({clients_per_round}, candidates={candidates})'
  return Selection(clients_per_round, choose, name, check)


def named(clients: Sequence[str], clients_per_round: int = 0) -> Selection:
  """Selection of some clients by name: all of them, or a uniform draw of S in a round.

  The others train in no round; they are evaluated as all clients, and take part in what
  a method does before the first round, as the first clusters of FeSEM.

  Raises:
    UserError: on no client, a name that is there twice, or an S that is more.
  """
  clients = [str(name) for name in clients]
  check_at_least(0, clients_per_round=clients_per_round)
  if not clients or len(set(clients)) < len(clients):
    raise UserError(
      'The names of the clients to select must be some, and each there once.'
    )
  count = clients_per_round or len(clients)
  if count > len(clients):
    raise UserError(
      f'{argument("clients_per_round", count)} is more than the {len(clients)} clients '
      'that are selected by name.'
    )

  def check(names: np.ndarray) -> None:
    places_of(clients, names)

  def choose(before: BeforeRound) -> np.ndarray:
    places = np.sort(places_of(clients, before.names))
    if count == len(places):
      return places
    return before.rng.choice(places, count, replace=False)

  return Selection(count, choose, f'named({count}, {_digest(sorted(clients))})', check)


def available(
  clients_per_round: int,
  trace: Sequence[tuple[str, float, float]],
  *,
  unit: str = 'rounds',
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
    UserError: on another unit, no interval, or one that is empty or not finite.
  """
  check_at_least(0, clients_per_round=clients_per_round)
  check_choice('unit', unit, UNITS)
  rows = sorted((str(name), float(first), float(last)) for name, first, last in trace)
  in_rounds = unit == 'rounds'
  for name, first, last in rows:
    empty = first > last if in_rounds else first >= last
    if empty or not (math.isfinite(first) and math.isfinite(last)):
      raise UserError(
        f'The availability of client {name} from {first:g} to {last:g} is no interval; '
        'give its begin, then its end, as finite numbers.'
      )
  if not rows:
    raise UserError('The trace of availability has no interval; give at least one.')
  own_names = sorted({name for name, *_ in rows})
  begins, ends = (np.array([row[i] for row in rows]) for i in (1, 2))

  def check(names: np.ndarray) -> None:
    places_of(own_names, names)

  def at(time: float) -> np.ndarray:
    return (begins <= time) & ((time <= ends) if in_rounds else (time < ends))

  def choose(before: BeforeRound) -> Chosen:
    time, waited = float(before.number), 0.0
    if not in_rounds:
      time = _clock(before.records)
    there = at(time)
    if not in_rounds and not there.any():
      later = begins[begins > time]
      if not len(later):
        raise UserError(
          f'No client is available after {time:g} simulated seconds, before round '
          f'{before.number}: the trace is over; lower `rounds`, or give a longer one.'
        )
      waited = float(later.min() - time)
      there = at(float(later.min()))
    present = sorted({rows[i][0] for i in np.flatnonzero(there)})
    places = np.sort(places_of(present, before.names))
    if 0 < clients_per_round < len(places):
      places = before.rng.choice(places, clients_per_round, replace=False)
    return Chosen(places, waited=waited)

  name = f'available({clients_per_round}, {unit}, {_digest(rows)})'
  return Selection(clients_per_round, choose, name, check)


def _clock(records: Sequence[dict[str, Any]]) -> float:
  """Simulated seconds of all rounds so far."""
  rounds = [record for record in records if record['round']]
  times = [t for r in rounds if (t := r.get('simulated_seconds')) is not None]
  if len(times) < len(rounds):
    raise UserError(
      'A trace of availability in seconds needs the simulated seconds of each round; '
      'give a `device_profile` (from Python `callbacks=[fj.callbacks.Costs(...)]`), '
      'and a method that says what it sends.'
    )
  return float(sum(times))


def _digest(rows: Any) -> str:
  return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
