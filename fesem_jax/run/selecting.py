"""The clients of a round that a `Selection` chooses on the host."""

import pickle
import random
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.own_code import cells_of
from fesem_jax.core.selection import BeforeRound, Selection
from fesem_jax.core.types import Cohort
from fesem_jax.data.arrangement import selected_cohort
from fesem_jax.evaluation.evaluate import mean_losses
from fesem_jax.run.programs import Programs
from fesem_jax.run.results.records import Record
from fesem_jax.run.spec import Spec
from fesem_jax.utils import processes
from fesem_jax.utils.notices import warn_once


def selected(
  spec: Spec,
  algorithm: Algorithm,
  state: Any,
  train: FederatedData,
  number: int,
  records: Sequence[Record],
  programs: Programs,
) -> tuple[Cohort, dict[str, Any]]:
  """The clients of a round, and what its record says of how they were selected.

  `state` is that before the round `number`, counted from 1, `train` as arranged, and
  `records` are those of earlier rounds.
  """
  selection = spec.selection
  assert isinstance(selection, Selection)
  mesh, real = algorithm.local.mesh, len(train.info.names)
  given = np.argsort(np.asarray(train.client_ids)[:real])  # The order of the data.

  def losses(places: np.ndarray) -> np.ndarray:
    cohort = selected_cohort(places, len(places), number, train, mesh)
    cohort = Cohort(cohort.ids, everyone=False)

    def measure(state: Any, train: FederatedData, cohort: Cohort) -> jax.Array:
      used = algorithm.deployed(state, train)
      return mean_losses(used, algorithm.local, train, cohort)

    args = (state, train, cohort)
    of_cohort = programs.compiled(('candidates', algorithm), measure, *args)(*args)
    of_all = np.full(train.num_clients + 1, np.nan)
    of_all[np.asarray(cohort.ids)] = processes.on_host(of_cohort)
    return of_all[given[places]]

  before = BeforeRound(
    number,
    prng_streams.host_rng(spec.seed, prng_streams.COHORT, number),
    train.info.names[given],
    np.asarray(train.sizes())[given],
    tuple(records),
    losses,
  )
  generators = _generators(selection.choose)
  states = _states_of(generators)
  places, of_selection = selection.chosen(before)
  if states != _states_of(generators):
    warn_once(
      f'The selection {selection.name} draws random numbers that are not those of '
      '`before.rng`, such as np.random: the seed does not decide which clients take '
      'part, and a run that is resumed, or repeated, has others.'
    )
  count = spec.clients_per_round
  return selected_cohort(places, count, number, train, mesh), of_selection


def _generators(choose: Callable[..., Any]) -> list[Any]:
  """The generators of NumPy's and Python's that a function holds.

  These are variables from outside of it, and fields of an object whose method it is.
  """
  held: list[Any] = [
    *getattr(getattr(choose, '__self__', choose), '__dict__', {}).values()
  ]
  if isinstance(function := getattr(choose, '__func__', choose), types.FunctionType):
    held += cells_of(function).values()
    held += map(function.__globals__.get, function.__code__.co_names)
  kinds = np.random.Generator | np.random.RandomState | random.Random
  return [x for x in held if isinstance(x, kinds)]


def _states_of(generators: Sequence[Any]) -> list[bytes]:
  """The states of some generators, and of those that all share."""
  return [*map(pickle.dumps, [np.random.get_state(), random.getstate(), *generators])]
