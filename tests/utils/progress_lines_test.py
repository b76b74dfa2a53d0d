"""What a run says of its waits, and where."""

import re

from fesem_jax import algorithms
from fesem_jax.run.programs import Programs
from fesem_jax.run.simulation import simulate
from tests.support import helpers
from tests.support.methods import federation


def test_a_run_says_what_it_waits_for_on_terminals_only(capsys):
  data, local = federation(), helpers.local()
  algorithm = algorithms.build('fesem', local, num_clusters=2)
  programs = Programs()

  def lines(progress):
    simulate(algorithm, data, data, rounds=1, progress=progress, programs=programs)
    said = capsys.readouterr()
    assert said.out == ''
    return re.findall(r'([^\r\n]+?)(?: \.\.\.|: \d+\.\d s)$', said.err, re.MULTILINE)

  assert lines(True) == [
    *['compiling the start, a round, the evaluation'] * 2,
    *['first models and clusters'] * 2,
    *['compiling the clusters'] * 2,
    *['compiling the local models for the figures'] * 2,
    *['local models for the figures'] * 2,
  ]
  # Nothing is compiled twice; neither where there is no terminal nor if not asked to.
  again = [*['first models and clusters'] * 2, *['local models for the figures'] * 2]
  assert lines(True) == again
  assert lines(None) == []
  assert lines(False) == []
