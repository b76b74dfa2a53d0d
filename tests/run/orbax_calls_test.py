"""Calls of Orbax: no noise after a failure, nothing kept after a success."""

import gc
from types import SimpleNamespace

import jax.numpy as jnp
import orbax.checkpoint as ocp
import tensorstore

from fesem_jax.run import orbax_calls


def lists():
  gc.collect()
  return sum(type(x) is list for x in gc.get_objects())


def test_errors_of_threads_after_a_failed_write_are_not_shown():
  shown = []
  hook = orbax_calls._but_of_closed_loops(shown.append)
  hook(SimpleNamespace(exc_value=RuntimeError('Event loop is closed')))
  assert not shown
  hook(SimpleNamespace(exc_value=RuntimeError('other')))
  assert len(shown) == 1


def test_a_save_keeps_no_lists_of_tensorstore(tmp_path):
  collect = tensorstore.experimental_collect_matching_metrics
  with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:

    def save(number):
      state = ocp.args.StandardSave({'w': jnp.arange(6.0), 'n': jnp.arange(3)})
      orbax_calls.quietly(checkpointer.save, tmp_path / str(number), args=state)

    save(0)
    first = lists()
    for i in range(1, 11):
      save(i)
    kept = lists() - first
  assert kept < 50  # TensorStore's counts of bytes would be 24 a save.
  assert tensorstore.experimental_collect_matching_metrics is collect
