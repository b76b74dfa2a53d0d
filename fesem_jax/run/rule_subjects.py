"""Builds the subjects of rules on runs, and applies the rules."""

from typing import Any

import jax

from fesem_jax.checks import local as _local  # noqa: F401 - registers its rules.
from fesem_jax.checks import runs as _runs  # noqa: F401
from fesem_jax.checks.rules import Data, Local, Outcome, Request, find
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.types import Cohort
from fesem_jax.run.callbacks.best_round import BestRound
from fesem_jax.run.programs import Programs
from fesem_jax.run.results.records import Record
from fesem_jax.run.spec import Spec
from fesem_jax.run.timeline import Timeline
from fesem_jax.training.calls import calls_noted


def check_before(
  spec: Spec,
  algorithm: Algorithm,
  timeline: Timeline,
  state: Any,
  cohort: Cohort,
  programs: Programs,
) -> list[str]:
  """Texts of the rules on a run before it begins; `state` has its shapes."""
  train = timeline.data.train
  local, ignore = algorithm.local, tuple(spec.ignore_checks)
  data, is_own = Data(spec.train, spec.test), spec.algorithm.made_by is None
  is_noised = local.sends is not None and local.sends.privacy is not None
  functions = local.model, local.optimizer, local.augmentation, local.sends
  texts = find(data, ignore)
  texts += programs.once(
    ('rules', *functions, local.keep_optimizer_state, spec.train.example_shape, ignore),
    lambda: find(Local(local, spec.train), ignore),
  )
  request = Request(
    algorithm,
    data,
    spec.rounds,
    spec.patience,
    spec.patience > 0
    and jax.eval_shape(algorithm.deployed, state, train).has_clusters(),
    [x.validation for x in spec.callbacks if isinstance(x, BestRound)],
    _trainings(algorithm, state, train, cohort) if is_noised and is_own else None,
  )
  return texts + find(request, ignore)


def check_after(spec: Spec, summary: Record, history: list[Record]) -> list[str]:
  """Texts of the rules on a finished run."""
  return find(Outcome(summary, history, spec.test), spec.ignore_checks)


def _trainings(algorithm: Algorithm, state: Any, train: Any, cohort: Cohort) -> int:
  """How often a round trains its clients."""
  args = state, train, cohort, jax.random.key(0)
  with calls_noted() as calls:
    jax.eval_shape(lambda *x: algorithm.step(*x), *args)  # New, so that JAX traces it.
  return len(calls)
