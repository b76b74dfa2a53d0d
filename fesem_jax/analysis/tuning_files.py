"""The two files of a finished tuning run: metrics.jsonl, and summary.json.

Its configuration is in the summary.
"""

import json
import pathlib
import shutil

from fesem_jax.run.configuration import check_same, digest_of_data
from fesem_jax.run.results import files
from fesem_jax.run.results.result import Result
from fesem_jax.run.spec import Spec

_FILES = 'metrics.jsonl', 'summary.json'


def finish(spec: Spec, result: Result) -> None:
  """Deletes all other files of a run that has finished."""
  if spec.workdir is not None:
    config = {'config': files.read_object(spec.workdir / 'config.json')}
    files.add_to_summary(spec.workdir, result.summary, config)
    _delete_others(spec.workdir)


def finished(spec: Spec) -> bool:
  """True if a workdir holds the two files of this run.

  Raises `WorkdirError` if they are of another run. Those of fewer rounds are deleted.
  """
  if spec.workdir is None:
    return False
  summary = files.read_object(spec.workdir / 'summary.json')
  if not summary or 'config' not in summary:
    return False
  digest = digest_of_data(spec.train, spec.test)
  config = json.loads(json.dumps((spec.config or {}) | {'data_digest': digest}))
  before = {name: x for name, x in summary['config'].items() if name in config}
  check_same(spec.workdir, before, config)
  _delete_others(spec.workdir)
  if summary['config'].get('rounds', spec.rounds) != spec.rounds:
    shutil.rmtree(spec.workdir)
    return False
  return True


def _delete_others(folder: pathlib.Path) -> None:
  for path in folder.iterdir():
    if path.is_dir():
      shutil.rmtree(path)
    elif path.name not in _FILES:
      path.unlink()
