"""The benchmarks measure what they say; their speed is not tested."""

import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from benchmarks import common
from benchmarks.workloads import WORKLOADS
from fesem_jax import models
from fesem_jax.core import sharding
from studies import growth


@pytest.mark.parametrize('name', WORKLOADS)
def test_work_loads_describe_the_models_they_name(name):
  workload = WORKLOADS[name]
  model = models.build(
    workload.network, workload.example_shape, workload.num_classes, workload.hidden
  )
  like = jax.eval_shape(model.init, jax.random.key(0))
  shapes = {name: leaf.shape for name, leaf in flatten_dict(like, sep='/').items()}
  assert shapes == workload.shapes()
  x, y, sizes = workload.arrays(3)
  assert len(x) == len(y) == sizes.sum()
  epochs = 5 if name == 'W6' else 1
  assert workload.steps(3) == epochs * sum(-(-n // workload.batch_size) for n in sizes)


def test_useful_share_counts_padding():
  steps = np.array([10, 4, 6, 2])
  assert common.useful_share(steps, 1, 1) == 1
  assert common.useful_share(steps, 1, 2) == 22 / 28  # (10, 6), (4, 2).
  assert common.useful_share(steps, 2, 2) == 22 / 32  # (10, 4), (6, 2).


def test_ragged_clients_waste_little():
  workload = WORKLOADS['W5']
  steps = -(-workload.sizes(1000) // workload.batch_size)
  assert steps.std() > 0.3 * steps.mean()
  shuffled = common.useful_share(steps[: 16 * 62], 1, 992)
  steps = steps[sharding.deal(steps)]
  assert common.useful_share(steps, 2, 1) == 1
  assert common.useful_share(steps, 2, 16) > 0.94
  assert shuffled < 0.5  # All side by side, as a plain vmap would have it.


def test_foreign_processes_are_noticed():
  if not pathlib.Path('/proc/stat').exists():
    pytest.skip('needs /proc')
  busy = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
  try:
    foreign, own = common.Activity(), common.Activity([busy.pid])
    time.sleep(1.0)
    seen, known = foreign.foreign_share(), own.foreign_share()
  finally:
    busy.kill()
    busy.wait()
  assert seen - known > 0.3 / (os.cpu_count() or 1)


def test_recovery_is_drawn_by_round_and_by_share(tmp_path):
  pytest.importorskip('matplotlib')
  from studies import recovery_figure

  rows = [
    {'rule': rule, 'shuffle': share, 'seeds': 2, 'recovered': round(2 * last - 1),
     'ari': last, 'curves': [[0.0, last], [0.2, last]]}
    for rule, worst in (('none', 0.5), ('better', 1.0))
    for share, last in ((0.2, 1.0), (1.0, worst))
  ]  # fmt: skip
  (tmp_path / 'r.json').write_text(
    json.dumps({'runs': [{}, {'flags': '', 'rows': rows}]})
  )
  recovery_figure.draw(tmp_path / 'r.json')
  assert (tmp_path / 'r.png').stat().st_size > 10_000
  figure = recovery_figure.recovery(rows)
  by_round, by_share = figure.axes
  np.testing.assert_allclose(
    [x.get_ydata() for x in by_round.lines], [[0.1, 1], [0.1, 0.5]]
  )
  np.testing.assert_allclose([x.get_xdata() for x in by_share.lines], [[0.2, 1]] * 2)
  np.testing.assert_allclose(
    [x.get_ydata() for x in by_share.lines], [[1, 1], [1, 0.5]]
  )
  names = [text.get_text() for text in figure.legends[0].get_texts()]
  assert names == ['better (1 of 2)', 'none (0 of 2)']
  colors = [line.get_color() for line in by_round.lines]
  alone = recovery_figure.recovery([r for r in rows if r['shuffle'] == 1.0])
  assert [line.get_color() for line in alone.axes[0].lines] == colors
  assert len(alone.axes) == 1


def test_growth_has_slopes_and_is_drawn_beside_linear_growth():
  pytest.importorskip('matplotlib')
  from studies import growth_figure

  rows = growth.with_slopes(
    [
      {'axis': 'epochs', 'value': n, 'milliseconds': n**2, 'bytes_per_client': 2**10,
       'microseconds_per_client': n**2}
      for n in (1, 2, 10)
    ]
  )  # fmt: skip
  assert 'slope' not in rows[0]
  np.testing.assert_allclose([row['slope'] for row in rows[1:]], 2.0)
  of_clients = [row | {'axis': 'clients'} for row in rows]
  above, epochs, below, _ = growth_figure.growth([*rows, *of_clients[::-1]]).axes
  found, linear = epochs.lines
  np.testing.assert_allclose(found.get_ydata(), [1, 4, 100])
  np.testing.assert_allclose(linear.get_ydata(), [10, 20, 100])
  np.testing.assert_allclose(above.lines[1].get_ydata(), 100)
  np.testing.assert_allclose(below.lines[0].get_ydata(), 1)
