"""Rules, their subjects, and the one function that applies them."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check, warn_once


class Data(NamedTuple):
  """Two splits of the same clients."""

  train: FederatedData
  test: FederatedData


class Deal(NamedTuple):
  """The clusters that examples belong to, or None, and the clients' training split."""

  clusters: Any
  train: FederatedData


class Local(NamedTuple):
  """How clients train, and the examples that they train on."""

  local: LocalTraining
  train: FederatedData


class Request(NamedTuple):
  """The arguments of `simulate` that rules read."""

  algorithm: Algorithm
  data: Data
  rounds: int
  patience: int  # rounds without a move after which it ends; 0 is never
  has_clusters: bool
  validation: Sequence[FederatedData]  # the examples that choose the best round
  trainings: int | None  # of a client in a round, if epsilon counts one


class Outcome(NamedTuple):
  """A finished run: the summary, the records of rounds, and the test examples."""

  summary: dict[str, Any]
  history: Sequence[dict[str, Any]]
  test: FederatedData


class Rule(NamedTuple):
  """A function that yields messages, with examples: expressions of `examples`."""

  id: str
  subject: type
  find: Callable[[Any], Iterator[str]]
  bad: str
  good: str


RULES: dict[str, Rule] = {}


def rule(number: int, *, bad: str, good: str) -> Callable[[Any], Any]:
  """Registers a function as a rule; its subject is the type of its argument."""

  def register(find: Callable[[Any], Iterator[str]]) -> Callable[[Any], Iterator[str]]:
    subject, _ = find.__annotations__.values()
    RULES[f'FJ{number}'] = Rule(f'FJ{number}', subject, find, bad, good)
    return find

  return register


def find(subject: Any, ignore: Iterable[str] = ()) -> list[str]:
  """Returns what the rules on a subject find, and logs each text once in a process."""
  for name in ignore:
    check(name in RULES, f'ignore_checks: unknown check {name!r:.20}')
  rules = [r for r in RULES.values() if isinstance(subject, r.subject)]
  texts = [f'{r.id} {x}' for r in rules if r.id not in ignore for x in r.find(subject)]
  for text in texts if processes.is_first() and not _silenced else ():
    warn_once(text)
  return texts


_silenced = False


@contextlib.contextmanager
def silenced() -> Iterator[None]:
  """Logs nothing that rules find within a block."""
  global _silenced
  before, _silenced = _silenced, True
  try:
    yield
  finally:
    _silenced = before
