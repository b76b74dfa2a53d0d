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

from benchmarks import common, precision
from benchmarks.workloads import WORKLOADS
from fesem_jax import models
from fesem_jax.core import sharding
from fesem_jax.core.algorithm import ClientModels
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


def test_clusters_are_compared_by_their_clients():
  a = np.array([0, 0, 1, 1, 2, 2, 2])
  assert precision.in_other_clusters(a, (a + 1) % 3) == 0
  assert precision.in_other_clusters(a, np.array([3, 3, 0, 2, 1, 1, 0])) == 2


def test_models_are_compared_client_by_client():
  centers = {'w': np.array([[3.0, 0.0], [0.0, 4.0]])}
  used = ClientModels(centers, np.array([0, 1, 1]))
  moved = ClientModels({'w': centers['w'][::-1]}, np.array([1, 0, 1]))
  assert precision.distance(used, used) == 0
  # The last client is 5 away; all models are of squared length 9 + 16 + 16.
  np.testing.assert_allclose(precision.distance(moved, used), 5 / 41**0.5)


def test_cycles_are_of_what_holds_a_product():
  text = """HloModule jit_step
%fused.1 (p: f32[8,8]) -> f32[8,8] {
  ROOT %c.1 = f32[8,8] convolution(%p, %p), operand_precision={high,high}, metadata={}
}
%fused.2 (p: f32[8,8]) -> f32[8,8] {
  ROOT %a.1 = f32[8,8] add(%p, %p)
}
ENTRY %main (p: f32[8,8]) -> f32[8,8] {
  %f.1 = f32[8,8] fusion(%p), calls=%fused.1, backend_config={"estimated_cycles":"70"}
  %c.2 = f32[8,8] convolution(%f.1, %p), backend_config={"estimated_cycles":"5"}
  ROOT %f.2 = f32[8,8] fusion(%c.2), calls=%fused.2, "estimated_cycles":"900"
}
"""
  assert precision.cycles(text) == {
    'products': {'high': 1, 'default': 1},
    'cycles_of_products': 75,
    'cycles': 975,
  }
