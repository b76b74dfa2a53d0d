"""The logged run of a workdir, which a resumed run continues; numbers of a record."""

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from fesem_jax.run.results import metrics_file
from fesem_jax.utils.atomic_files import write_atomically

_FILE = 'logged_runs.json'


def logged_run(
  workdir: pathlib.Path | None, logger: str, make: Callable[[], str]
) -> tuple[str, bool]:
  """The id of the logger's run, and whether it existed already.

  `make` creates a logged run and returns its id; without a workdir, it is called each
  time.
  """
  if workdir is None:
    return make(), False
  held = _held(workdir)
  if logger in held:
    return held[logger], True
  held[logger] = make()
  _write(workdir, held)
  return held[logger], False


def rounds_logged(workdir: pathlib.Path | None, logger: str) -> int:
  """The last round that `keep_rounds` noted; -1 where there is none."""
  noted = '' if workdir is None else _held(workdir).get(f'{logger}_rounds', '')
  return int(noted) if noted.isdecimal() else -1


def keep_rounds(workdir: pathlib.Path | None, logger: str, number: int) -> None:
  """Notes the last round that the logger's run has for sure."""
  if workdir is not None:
    _write(workdir, _held(workdir) | {f'{logger}_rounds': str(number)})


def _held(workdir: pathlib.Path) -> dict[str, str]:
  """Content of the file of a workdir."""
  return metrics_file.read_object(workdir / _FILE) or {}


def _write(workdir: pathlib.Path, held: dict[str, str]) -> None:
  write_atomically(workdir / _FILE, json.dumps(held, indent=1) + '\n')


def run_name(workdir: pathlib.Path | None) -> str | None:
  """The name of a run in loggers: the last two folders of its path."""
  return None if workdir is None else '/'.join(workdir.absolute().parts[-2:])


def scalars(value: Any, prefix: str = '') -> Iterator[tuple[str, float]]:
  """Every number of a nested record except the round, as ('deployed/micro_f1', 0.9).

  `value` is a record, or the value in it whose path is `prefix`.
  """
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from scalars(inner, f'{prefix}/{key}' if prefix else key)
  elif isinstance(value, list):
    for i, inner in enumerate(value):
      yield from scalars(inner, f'{prefix}/{i}')
  elif isinstance(value, int | float) and prefix != 'round':
    yield prefix, value
