"""Digests by which the files of a workdir are found to be of one run."""

import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fesem_jax.run.configuration import FREE
from fesem_jax.run.results import client_table, metrics_file, saved_client_table
from fesem_jax.run.results.client_table import ClientTable
from fesem_jax.utils.errors import UserError

Record = dict[str, Any]


def digests(
  folder: pathlib.Path | None, portrait: Mapping[str, np.ndarray] | None
) -> Record:
  """Entries of a summary on config.json and clients.npz; none without a workdir.

  `portrait` is what clients.npz holds, empty or None where there is none.
  """
  if folder is None:
    return {}
  drawn = {'portrait_digest': _of_arrays(portrait)} if portrait else {}
  return {'config_digest': digest_of_config(folder)} | drawn


def digest_of_config(folder: pathlib.Path) -> str:
  """Digest of the entries of config.json that identify a run; '' without a file."""
  config = metrics_file.read_config(folder)
  if config is None:
    return ''
  kept = {name: x for name, x in config.items() if name not in FREE}
  return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
  digest = hashlib.sha256()
  for name in sorted(arrays):
    x = np.ascontiguousarray(arrays[name])
    digest.update(f'{name} {x.dtype} {x.shape}'.encode())
    digest.update(x.reshape(-1).view(np.uint8).data)
  return digest.hexdigest()[:16]


def check(workdir: pathlib.Path, summary: Record, history: Sequence[Record]) -> None:
  """Raises `UserError` unless config.json and the records are those of a summary."""
  known = summary.get('config_digest')  # Absent in runs of older versions.
  if known not in (None, digest_of_config(workdir)):
    raise UserError(
      f'config.json and summary.json in {workdir} are of different runs; put back the '
      'config.json of this run.'
    )
  wanted, actual = summary.get('metrics_digest'), metrics_file.digest_of(history)
  if wanted is None and history:  # Of an older version.
    wanted, actual = (
      json.dumps([held.get(kind) for kind in ('deployed', 'finetuned')])
      for held in (summary, history[-1])
    )
  if actual != wanted:
    raise UserError(
      f'summary.json and metrics.jsonl in {workdir} have different figures; delete '
      'summary.json and run the same command again, which recreates it.'
    )


def read_clients(workdir: pathlib.Path, summary: Record) -> ClientTable | None:
  """The table of clients of a finished run; None without a file.

  Raises `UserError` if it is damaged, or not of the run of the summary.
  """
  table = saved_client_table.read(workdir)
  if table is not None and not client_table.agrees(table, summary):
    raise UserError(
      f'clients.csv and summary.json in {workdir} are not of one run, or of different '
      'rounds; run the same command again, which recreates them.'
    )
  return table


def read_portrait(workdir: pathlib.Path, summary: Record) -> dict[str, np.ndarray]:
  """The arrays of clients.npz of a finished run; none without a file.

  Raises `UserError` if it is damaged, or not of the run of the summary.
  """
  portrait = metrics_file.read_clients(workdir)
  wanted = summary.get('portrait_digest')
  if portrait and 'config_digest' in summary and _of_arrays(portrait) != wanted:
    raise metrics_file.damaged(
      workdir / 'clients.npz', 'it is not of the run of summary.json'
    )
  return portrait
