"""One of several processes that run methods in turn, started by processes_test.

python -m tests.support.process_worker ADDRESS ID COUNT DEVICES FOLDER NAME...

A NAME is a row of `METHODS`: 3 stands for a few rounds of it, run3 for a whole run in
FOLDER/run3, sharded3 for one whose data are split by client, and `regression` for one
of another task. Every process leaves what
it got in FOLDER/NAME.ID.json and .npz.
"""

import dataclasses
import json
import pathlib
import sys

import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.checks.rules import RULES
from fesem_jax.core import arrangement, prng_streams, sharding
from fesem_jax.utils import processes
from tests import conftest  # noqa: F401 - it sets what tests compile with.
from tests.support import helpers, methods
from tests.support.runs import simulate

ROUNDS = 3


def built(index, devices):
  """A method of the table."""
  name, options = methods.METHODS[index]
  local = helpers.local(chunk=3, devices=devices, hidden=methods.hidden_of(index))
  return algorithms.build(name, local, **options)


def cohort_size(index):
  """S: all, or four of six clients in some rows, as in that of split data."""
  name = methods.METHODS[index][0]
  some = name == 'scaffold' or index % 3 == 0
  return 4 if some and name not in methods.ALL_CLIENTS else 0


def some_rounds(index, devices):
  """State and infos of a few rounds on the standard federation, by path."""
  algorithm, data = built(index, devices), methods.federation()
  mesh = algorithm.local.mesh
  train, _ = arrangement.arrange(algorithm.local, data, data)
  streams = prng_streams.INIT, prng_streams.ROUNDS
  keys = [prng_streams.folded(jax.random.key(index), stream) for stream in streams]
  init_key, key = sharding.replicate(keys, mesh)
  state = jax.jit(algorithm.init)(init_key, train)
  step, infos = jax.jit(algorithm.step), []
  for number in range(1, ROUNDS + 1):
    cohort = arrangement.draw_cohort(index, number, cohort_size(index), train, mesh)
    state, info = step(state, train, cohort, prng_streams.folded(key, number))
    if algorithm.between is not None:
      placed = jax.tree.map(lambda x: x.sharding, state)
      state, info = algorithm.between(state, info)
      state = sharding.place(state, placed)
    infos.append(info)
  return helpers.flat(processes.on_host({'state': state, 'infos': infos}))


def moved(data):
  """A test split beside the training split `data`, without its examples."""
  return dataclasses.replace(data, x=data.x + np.float32(0.01))


def whole_run(index, devices, workdir, rounds=ROUNDS, data_placement='auto', data=None):
  """The result of a run with all that it can have."""
  data, test = data or methods.federation(), moved(methods.federation())
  return simulate(
    built(index, devices), data, test, rounds=rounds, seed=index,
    clients_per_round=cohort_size(index), eval_every=2, workdir=workdir,
    config={'index': index}, checkpoint_every=2, unseen=(moved(test), test),
    progress=False, data_placement=data_placement,
    ignore_checks=tuple(RULES),  # They read examples of all clients.
  )  # fmt: skip


def sharded_run(index, devices, workdir):
  """The result of a run of data split by client."""
  data = methods.federation()
  return whole_run(index, devices, workdir, ROUNDS, 'sharded', data)


def arrays_of(result):
  """Whatever a run gives back in arrays, by name."""
  actual = helpers.flat(result.models) | result.portrait
  for name, column in result.clients.items():
    x = column.to_numpy()
    actual[name] = x.astype(str) if x.dtype.hasobject else x  # Not to be pickled.
  return actual


def main(address, process_id, count, devices, folder, *names):
  group = processes.Group(address, int(process_id), int(count))
  sharding.setup_devices(int(devices), group)
  folder = pathlib.Path(folder)
  for name in names:
    if name.startswith('run'):
      index = int(name.removeprefix('run'))
      result = whole_run(index, int(devices), folder / name)
      arrays, records = arrays_of(result), [result.history, result.summary]
    elif name.startswith('sharded'):
      index = int(name.removeprefix('sharded'))
      result = sharded_run(index, int(devices), folder / name)
      arrays, records = arrays_of(result), [result.history, result.summary]
    else:
      arrays, records = some_rounds(int(name), int(devices)), None
    np.savez(folder / f'{name}.{process_id}.npz', **arrays)
    (folder / f'{name}.{process_id}.json').write_text(json.dumps(records))


if __name__ == '__main__':
  main(*sys.argv[1:])
