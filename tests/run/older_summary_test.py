"""Finished runs whose summary has the figures of the last round alone."""

import json
import logging

from fesem_jax import algorithms
from tests.support import helpers
from tests.support.runs import simulate


def test_they_are_reported_alike_and_completed(tmp_path, caplog):
  data, test = helpers.federation([4, 5]), helpers.federation([4, 5], seed=1)
  algorithm = algorithms.build('fed_avg', helpers.local())

  def run():
    return simulate(
      algorithm, data, test, rounds=2, workdir=tmp_path,
      progress=False,
    )  # fmt: skip

  first = run()
  path = tmp_path / 'summary.json'
  held = json.loads(path.read_text())
  assert held == json.loads(json.dumps(first.summary))
  for name in ('reports', 'global_accuracy'):
    del held[name]
  path.write_text(json.dumps(held))
  (tmp_path / '.summary.sha256').unlink()  # Which older versions did not write.
  with caplog.at_level(logging.WARNING):
    again = run()
  assert again.summary == first.summary
  assert json.loads(path.read_text()) == first.summary
  assert not caplog.records
