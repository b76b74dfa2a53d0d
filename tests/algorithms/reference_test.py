"""Rounds of every method against float64 NumPy."""

import jax
import numpy as np
import pytest
from jax.lax import Precision

from fesem_jax import algorithms
from fesem_jax.core import placement, sharding
from fesem_jax.core.types import Cohort
from tests.support import draws, helpers, reference
from tests.support.methods import ALL_CLIENTS, assert_close
from tests.support.random_federations import assert_equal, restored
from tests.support.rounds import HIDDEN, REFERENCES, Clients, two_absent

LEAST_PARAMETERS = 12  # Of the layers that a field has, above numbers of clients.
SLOW_TO_DEPLOY = {'fed_few', 'hypo_cluster', 'per_fed_avg'}


def stack(models):
  """[..., P] float64 of a stack of models or of some of their layers."""
  names = sorted(n for n in models if n.startswith('dense')) + ['logits']
  parts = [
    (np.asarray(layer[part], np.float64), dimensions)
    for layer in (models[name] or {} for name in names if name in models)
    for part, dimensions in (('kernel', 2), ('bias', 1))
    if layer.get(part) is not None
  ]
  rows = [x.reshape(*x.shape[: x.ndim - d], -1) for x, d in parts]
  return np.concatenate(rows, axis=-1)


def arrays(state):
  """The state as references have it."""
  if isinstance(state, dict):
    return stack(state)
  if hasattr(state, '_asdict'):
    fields = {n: x for n, x in state._asdict().items() if n != 'server'}
    return {name: arrays(x) for name, x in fields.items() if x is not None}
  return np.array(state, np.float64)


def assert_states_close(state, expected, atol):
  """Models within 1e-3, all else within 1e-4; `atol` of fields, near 0."""
  assert state.keys() == expected.keys()
  for name, x in expected.items():
    if isinstance(x, dict):
      assert_states_close(state[name], x, atol)
    else:
      x, actual = np.atleast_1d(x), np.atleast_1d(state[name])
      rows = slice(6 if len(x) == 8 else None)  # Two have no examples.
      rtol = 1e-3 if x.shape[-1] >= LEAST_PARAMETERS else 1e-4
      bounds = {'rtol': rtol, 'atol': atol.get(name, 1e-5), 'err_msg': name}
      np.testing.assert_allclose(actual[rows], x[rows], **bounds)


def assert_reports_match(info, report):
  """Numbers of a round, and of its clusters."""
  if 'train_loss' in report:
    assert_close(info.train_loss, report['train_loss'])
  if 'steps' in report:
    assert int(info.steps) == report['steps']
  if 'objective' in report:
    assert_close(info.clusters.objective, report['objective'], rtol=1e-3)
    assert int(info.clusters.moved) == report['moved']
    np.testing.assert_array_equal(info.clusters.sizes, report['sizes'])


@pytest.mark.parametrize(
  'everyone',
  [
    pytest.param(False, id='cohorts'),
    pytest.param(True, id='everyone', marks=pytest.mark.nightly),
  ],
)
@pytest.mark.parametrize('entry', REFERENCES, ids=str)
def test_rounds_match_float64_reference(entry, everyone):
  """Cohorts on two devices that have their examples; all clients on one device.

  Clients drop out, the last round goes on from a checkpoint, and every product says
  its precision.
  """
  devices = {'devices': 1} if everyone else {'devices': 2, 'chunk': 4}
  rate = 0.3 if entry.dropout and not everyone else 0.0
  local = helpers.local(**{'epochs': 2, 'hidden': HIDDEN} | devices | entry.training)
  local = local._replace(dropout_rate=rate, **entry.changes)
  algorithm = algorithms.build(entry.name, local, **entry.options)
  data_of = entry.data_of or (lambda number: two_absent())
  data = data_of(1)
  state, step = entry.start(algorithm, data), jax.jit(algorithm.step)
  deploy = algorithm.client_params
  if entry.name in SLOW_TO_DEPLOY:  # A hundred operations, one program each.
    deploy = jax.jit(deploy)
  shapes = jax.eval_shape(local.model.init, jax.random.key(0))
  like = reference.from_params(jax.tree.map(lambda x: np.zeros(x.shape), shapes))
  expected, memory = arrays(state), {}
  layout = 'replicated' if everyone else entry.layout
  everyone |= entry.name in ALL_CLIENTS
  for number in range(1, entry.num_rounds + 1):
    data, key = data_of(number), jax.random.fold_in(jax.random.key(9), number)
    ids = entry.cohorts[(number - 1) % len(entry.cohorts)]
    ids = range(data.num_clients) if everyone else ids
    places = [i if i in ids else data.num_clients for i in range(data.num_clients)]
    cohort = Cohort(np.array(places, np.int32), everyone=everyone)
    drawn = [i for i in ids if i < len(data.info.names)]
    present = [i for i in drawn if not rate or not draws.drops_out(key, data, i, rate)]
    placed = placement.place(data, local.mesh, layout)
    state = jax.device_get(state)
    if number == entry.num_rounds:
      saved, state = state, restored(state)
      assert_equal(state, saved)
    state, place_key = sharding.replicate((state, key), local.mesh)
    args = state, placed, cohort, place_key
    if number == 1:
      precisions = helpers.product_precisions(step.trace(*args).jaxpr.jaxpr)
      assert set(precisions) == {(Precision.HIGHEST, Precision.HIGHEST)}
    state, info = step(*args)
    if algorithm.between is not None:
      state, info = algorithm.between(state, info)
    actual = arrays(state)
    clients = Clients(
      name=entry.name, data=data, local=local, key=key, number=number, drawn=drawn,
      ids=present, last=number == entry.num_rounds, everyone=everyone, like=like,
      after=actual, memory=memory,
    )  # fmt: skip
    report = entry.round(clients, expected, **entry.options)
    assert_states_close(actual, expected, entry.atol)
    assert_reports_match(info, report)
    assert (int(info.trained), int(info.failed)) == (len(present), 0)
    if 'deployed' in report:
      ids = np.arange(len(data.info.names))
      used = arrays(deploy(jax.device_get(state), data, ids))
      target, atol = report['deployed'][: len(used)], entry.atol.get('deployed', 1e-5)
      assert_close(used, target, rtol=1e-3, atol=atol)
