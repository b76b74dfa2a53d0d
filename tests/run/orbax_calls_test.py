"""Calls of Orbax: no noise after a failure, nothing kept after a success."""

import gc
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
import tensorstore

from fesem_jax.run import checkpoint
from fesem_jax.run.checkpoint import Checkpoints


def lists():
  """Number of lists, without those of strings, which are parts of cached paths."""
  gc.collect()
  found = [x for x in gc.get_objects() if type(x) is list]
  return sum(not all(isinstance(part, str) for part in x) for x in found)


def test_errors_of_threads_after_a_failed_write_are_not_shown():
  shown = []
  hook = checkpoint._but_of_closed_loops(shown.append)
  hook(SimpleNamespace(exc_value=RuntimeError('Event loop is closed')))
  assert not shown
  hook(SimpleNamespace(exc_value=RuntimeError('other')))
  assert len(shown) == 1


@pytest.mark.nightly
def test_a_checkpoint_keeps_no_lists_of_tensorstore(tmp_path):
  collect = tensorstore.experimental_collect_matching_metrics
  (tmp_path / 'metrics.jsonl').touch()
  checkpoints = Checkpoints(tmp_path)
  state = {'w': jnp.arange(6.0), 'n': jnp.arange(3)}
  checkpoints.save(0, state)
  first = lists()
  for i in range(1, 11):
    checkpoints.save(i, state)
  kept = lists() - first
  checkpoints.close()
  assert kept < 20  # TensorStore's counts of bytes would be 10 a save.
  assert tensorstore.experimental_collect_matching_metrics is collect
