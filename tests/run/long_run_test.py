"""5,000 rounds in one process: memory, open files and threads stay flat."""

import gc
import os
import pathlib

import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.utils import free_memory
from tests.support.runs import simulated_linear

pytestmark = [
  pytest.mark.nightly,
  pytest.mark.slow,
  pytest.mark.skipif(not pathlib.Path('/proc/self').exists(), reason='needs /proc'),
]

ROUNDS, EVERY = 5000, 100
# MiB that 1,000 rounds add: 3.1 with version 0.4.0, of which their records are 2.
MOST_MIB = 8.0


def resident():
  """MiB of this process that are resident."""
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return pages * os.sysconf('SC_PAGE_SIZE') / 2**20


class Watch(fj.Callback):
  """Measures the process in every hundredth round."""

  def __init__(self):
    self.memory, self.counts = [], []

  def on_round(self, event):
    """Adds a measurement."""
    if event.number % EVERY:
      return
    gc.collect()
    free_memory.give_back()
    self.memory.append(resident())
    folders = (pathlib.Path('/proc/self', name) for name in ('fd', 'task'))
    files, threads = (len(os.listdir(folder)) for folder in folders)
    self.counts.append((files, threads))


def test_a_long_run_holds_no_more_than_its_records(tmp_path):
  watch = Watch()
  simulated_linear(
    rounds=ROUNDS, workdir=tmp_path, checkpoint_every=10,
    callbacks=[watch], progress=False,
  )  # fmt: skip
  assert len(watch.memory) == ROUNDS // EVERY
  fifth = len(watch.memory) // 5  # Caches fill in it.
  slope = np.polyfit(np.arange(fifth, len(watch.memory)), watch.memory[fifth:], 1)[0]
  assert slope * 1000 / EVERY < MOST_MIB
  first, last = np.array(watch.counts[fifth]), np.array(watch.counts[-1])
  assert (last - first <= 1).all()
