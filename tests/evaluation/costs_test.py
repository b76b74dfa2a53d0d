"""What methods send, what that costs, and how long it takes on devices of a profile."""

import json
import types

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.algorithm import ClientRound
from fesem_jax.core.traffic import Drawn, Sent, bytes_of_model, one_model
from fesem_jax.evaluation import costs
from fesem_jax.run.results import frames
from fesem_jax.training import device_profiles
from fesem_jax.utils.errors import UserError
from tests.support import helpers

LOCAL = helpers.local(4)
P = bytes_of_model(LOCAL)  # Bytes of a model.
HEAD = 4 * (5 * helpers.CLASSES + helpers.CLASSES)  # Of its last layer.
M, S, K = 9, 5, 4  # Clients, those of a round, default centers.


def traffic(name, **options):
  return algorithms.build(name, LOCAL, **options).traffic or one_model(LOCAL)


def sent(name, known=None, number=1, count=S, **options):
  """(bytes down of each client, bytes up of each, passes of each)."""
  of = traffic(name, **options)
  drawn = Drawn(number, np.arange(count), count == M)
  numbers = of.round_costs(known, drawn)[:3]
  return tuple(np.broadcast_to(x, count).tolist() for x in numbers)


# Methods whose clients receive and send a model.
ONE_MODEL = (
  'fed_avg', 'fed_sgd', 'fed_prox', 'fed_opt', 'fed_dist', 'fed_dws', 'oracle', 'ditto',
  'fed_cluster', 'robust', 'fesem', 'fesem_ma', 'apfl', 'p_fed_me', 'per_fed_avg',
  'fed_ala', 'fed_amp', 'clove', 'fed_dyn', 'moon', 'pacfl', 'fed_group', 'flux',
  'fed_drift',
)  # fmt: skip


@pytest.mark.parametrize(('name', 'down', 'up', 'passes'), [
  *[(name, P, P, 0) for name in ONE_MODEL], ('non_fed', 0, 0, 0),
  ('fed_per', P - HEAD, P - HEAD, 0), ('fed_rep', P - HEAD, P - HEAD, 0),
  ('fed_babu', P - HEAD, P - HEAD, 0), ('lg_fed_avg', HEAD, HEAD, 0),
  ('fed_bn', P - HEAD, P - HEAD, 0), ('scaffold', 2 * P, 2 * P, 0),
  ('fed_em', K * P, K * P, K), ('hypo_cluster', K * P, P + 4, K),
  ('fed_few', 3 * P, 3 * (P + 4), 3),
  ('fed_nova', P, P + 4, 0), ('cfl_gp', 2 * P, 2 * P, 3),  # A round that clusters.
  # Another cohort sends gradients: the model twice, the mean gradient once.
  ('fed_dane', 3 * P, 2 * P, 6),
])  # fmt: skip
def test_each_method_counts_what_it_sends(name, down, up, passes):
  options = {'norm_layers': ('logits',)} if name == 'fed_bn' else {}
  assert sent(name, **options) == ([down] * S, [up] * S, [passes] * S)


def test_two_more_models_of_moon_see_the_batch_of_each_local_step():
  drawn = Drawn(1, np.arange(S), everyone=False)
  assert traffic('moon').round_costs(None, drawn).passes_of_step == 2
  assert traffic('fed_avg').round_costs(None, drawn).passes_of_step == 0


def test_fed_rc_sends_a_number_for_each_center_and_class():
  inputs = traffic('fed_rc').inputs(types.SimpleNamespace(classes=np.zeros((M, K, 3))))
  assert inputs == 3
  both = [K * (P + 3 * 4)] * S
  assert sent('fed_rc', inputs) == (both, both, [K] * S)


def test_l2gd_sends_models_in_rounds_of_aggregation_only():
  inputs = traffic('l2gd').inputs(types.SimpleNamespace(aggregates=np.bool_(True)))
  assert sent('l2gd', inputs) == ([P] * S, [P] * S, [0] * S)
  assert sent('l2gd', ~inputs) == ([0] * S, [0] * S, [0] * S)


def test_fed_soft_computes_losses_where_they_are_due():
  inputs = traffic('fed_soft').inputs(types.SimpleNamespace(estimated=0, rounds=3))
  assert inputs == (0, 3)
  inputs = np.array([3, 1, 2, -2, 0, 3, 3, 3, 3]), np.int32(3)
  expected = [K * P] * S, [P + 4 * K] * S, [0, K, 0, K, K]
  assert sent('fed_soft', inputs, number=4) == expected


def test_with_all_clients_fed_dane_sends_its_model_once():
  assert sent('fed_dane', count=M) == ([2 * P] * M, [2 * P] * M, [3] * M)


def test_every_method_of_the_package_says_what_it_sends():
  of_mlp = [name for name in algorithms.METHODS if name != 'fed_bn']  # It has no norm.
  refuse_noise = {name for name in of_mlp if traffic(name).extras is None}
  assert refuse_noise == {
    'fed_dane', 'scaffold', 'fed_em', 'fed_rc', 'fed_soft', 'fed_few', 'l2gd', 'cfl_gp',
    'fed_nova', 'pacfl', 'fed_group', 'stocfl', 'flux', 'centralized',
  }  # fmt: skip
  assert traffic('fed_sgd').whole_batches
  assert not traffic('hypo_cluster').whole_batches


def test_clove_sends_all_models_from_the_second_round_on():
  expected = [K * P + 4] * S, [P + 4 * K] * S, [K] * S
  assert sent('clove', number=2) == expected


def test_cfl_gp_sends_gradients_in_the_rounds_that_cluster():
  down = [sent('cfl_gp', number=n)[0][0] for n in range(1, 13)]
  assert down == [2 * P, P] * 5 + [P, P]


def test_pacfl_counts_the_vectors_that_clients_send():
  of = traffic('pacfl')
  inputs = of.inputs(types.SimpleNamespace(numbers_sent=np.array([12, 6, 0])))
  assert costs.start_bytes(of, 3, inputs) == {
    'start_bytes_down': 0,
    'start_bytes_up': 72,
  }


def test_fed_group_sends_first_models_of_all_clients():
  assert traffic('fed_group').start_bytes(M) == (M * P, M * P)


def test_new_clients_of_stocfl_send_a_change_of_one_more_model():
  of, joined = traffic('stocfl'), np.array([True, False, True, True, False])
  inputs = of.inputs(
    types.SimpleNamespace(clusters=types.SimpleNamespace(joined=joined))
  )
  both = [2 * P, 3 * P, 2 * P, 2 * P, 3 * P]
  assert sent('stocfl', inputs) == (both, both, [0, 30, 0, 0, 30])
  drawn = Drawn(1, np.arange(5), everyone=True)
  counted = costs.round_bytes(of.round_costs(inputs, drawn), drawn, 4)
  assert counted == {'bytes_down': 12 * P, 'bytes_up': round(12 / 5 * 4 * P)}


def test_flux_sends_descriptors_once():
  inputs = traffic('flux').inputs(types.SimpleNamespace(numbers=np.int32(80)))
  assert sent('flux', inputs, 4, 1) == ([P], [P], [0])
  assert sent('flux', inputs, 5, 1) == ([P], [P + 4 * 80], [1])


def test_fed_drift_sends_models_in_use_at_the_begin_of_time_steps():
  inputs = traffic('fed_drift').inputs(
    types.SimpleNamespace(last_used=np.array([2, -1, 0]))
  )
  assert inputs == 2
  rounds = [
    sent('fed_drift', inputs, number, 1, check_every=3) for number in range(1, 6)
  ]
  once, all_models = ([P], [P], [0]), ([3 * P], [P + 2 * 4], [2])
  assert rounds == [once, once, once, all_models, once]
  assert sent('fed_drift', inputs, 2, 1, check_every=1) == all_models
  assert traffic('fed_drift').start_bytes(M) == (0, 4 * M)


def test_a_check_of_clusters_sends_one_model():
  options = {'recluster_every': 2}
  assert sent('hypo_cluster', (4, False, None), 4, **options) == (
    [P] * S,
    [P] * S,
    [0] * S,
  )
  assert sent('hypo_cluster', (4, False, None), 3, **options)[0] == [K * P] * S
  # After a change clients keep their clusters: each receives its own center.
  kept = [P] * S, [P + 4] * S, [0] * S  # Models up, and a loss each.
  assert sent('hypo_cluster', (8, True, None), 5, **options) == kept


def test_the_wrapped_state_gives_what_its_traffic_looks_at():
  checks = types.SimpleNamespace(due=2, hold=False)
  state = types.SimpleNamespace(method=None, checks=checks)
  assert traffic('fesem', recluster_every=2).inputs(state) == (2, False, None)


@pytest.mark.parametrize(('name', 'options', 'down', 'up'), [
  ('fed_avg', {}, 0, 0), ('fesem', {}, M * P, M * P),
  ('fesem', {'init_models': 'random'}, 0, M * P),
  ('fesem', {'init_models': 'by_loss'}, M * K * P, M * (P + 4)),
  ('robust', {}, M * P, M * (P + 4 * 10)),
  ('robust', {'init_tolerance': 0.0}, M * P, M * P),
  ('hypo_cluster', {'init_restarts': 1, 'init_rounds': 0}, 0, 0),
  # Two draws are compared by a loss of each client.
  ('hypo_cluster', {'init_restarts': 2, 'init_rounds': 0, 'init_clients': 5},
   2 * 5 * K * P, 2 * 5 * 4),
  ('hypo_cluster', {'init_restarts': 3, 'init_rounds': 2, 'init_clients': 5},
   3 * 5 * 3 * K * P, 3 * 5 * (2 * (P + 4) + 4)),
])  # fmt: skip
def test_the_start_is_counted(name, options, down, up):
  assert traffic(name, **options).start_bytes(M) == (down, up)


def test_totals_of_a_run():
  of = traffic('fesem')
  history = [{'round': 0}]
  for number in (1, 2):
    drawn = Drawn(number, np.arange(S), False)
    record = costs.round_bytes(of.round_costs(None, drawn), drawn, arrived=3)
    record |= costs.start_bytes(of, M) if number == 1 else {}
    history.append({'round': number, 'simulated_seconds': 2.5} | record)
  assert history[2] == {
    'round': 2, 'simulated_seconds': 2.5, 'bytes_down': S * P, 'bytes_up': 3 * P,
  }  # fmt: skip
  outcome = costs.summary(history, 'phone')
  start = {'bytes_down': M * P, 'bytes_up': M * P}
  assert outcome['bytes_down'] == M * P + 2 * S * P
  assert outcome['bytes_up'] == M * P + 6 * P
  assert (outcome['start'], outcome['simulated_seconds']) == (start, 5.0)
  json.dumps(outcome)
  sent = frames.rounds_of(history).query("metric == 'total_bytes'")['value']
  first = 2 * M * P + S * P + 3 * P
  np.testing.assert_array_equal(sent, [first, first + S * P + 3 * P])
  history[1]['bytes_down'] = None
  assert costs.summary(history)['bytes_down'] is None
  assert 'total_bytes' not in set(frames.rounds_of(history)['metric'])


def test_speeds_depend_on_the_seed_and_the_client_alone():
  of, ids = device_profiles.PROFILES['phone'], np.arange(2000)

  def speeds(seed, ids):
    return np.asarray(device_profiles.speeds(of, jax.random.key(seed), ids))

  client_speeds = speeds(3, ids)
  np.testing.assert_array_equal(speeds(3, ids[[7, 2]]), client_speeds[:, [7, 2]])
  assert not np.allclose(client_speeds, speeds(4, ids))
  logs = np.log(client_speeds / np.array([of[:3]]).T)
  np.testing.assert_allclose(logs.mean(axis=1), 0, atol=0.05)
  np.testing.assert_allclose(logs.std(axis=1), of.spread, rtol=0.05)
  assert abs(np.corrcoef(logs)[0, 1]) < 0.1


def test_a_round_takes_as_long_as_its_slowest_client(monkeypatch):
  of = device_profiles.DeviceProfile(100.0, 10.0, 1000.0, 1.0, 0.0)
  client_speeds = np.array([[100.0, 50.0], [10.0, 10.0], [1000.0, 500.0]])
  monkeypatch.setattr(
    device_profiles, 'speeds', lambda *_: jax.numpy.array(client_speeds)
  )
  monkeypatch.setattr(device_profiles, 'operations', lambda *_: 10.0)
  devices = device_profiles.SimulatedDevices(of, 0, LOCAL, helpers.federation([4, 3]))
  sent = Sent(np.array([200.0, 100.0]), 30.0, passes=0.5)

  def seconds(*arrived):
    ids, steps, nothing = np.array([0, 1, 2]), np.array([1, 1, 0]), np.zeros(3)
    clients = ClientRound(ids, nothing, nothing, np.array([*arrived, False]), steps)
    return devices.seconds(sent, clients, whole_batches=True)

  # 1 + 2 + 10 * (3 * 4 + 2) / 1000 + 3 and 1 + 2 + 10 * (3 * 3 + 1.5) / 500 + 3.
  np.testing.assert_allclose([seconds(True, True), seconds(True, False)], [6.21, 6.14])
  assert seconds(False, False) == 0.0
  # 1 + 2 + 10 * (5 * 4 + 2) / 1000 + 3: two passes more of each of the step's examples.
  sent = sent._replace(passes_of_step=2)
  np.testing.assert_allclose(seconds(True, False), 6.22)
  with pytest.raises(UserError, match='device_profile'):
    device_profiles.profile('watch', 'device_profile')


def test_operations_are_those_of_the_products():
  inputs = int(np.prod(helpers.SHAPE))
  products = 2 * (inputs * 5 + 5 * helpers.CLASSES)
  outcome = device_profiles.operations(LOCAL.model, helpers.SHAPE)
  assert products <= outcome <= 1.5 * products


def test_operations_are_of_all_steps_of_a_recurrent_network():
  def apply(params, x):
    def layer(h, w):
      return jax.lax.scan(lambda h, _: (h @ w, None), h, length=5)[0], None

    return jax.jit(lambda x: jax.lax.scan(layer, x, params)[0])(x)

  model = LOCAL.model._replace(init=lambda key: np.ones((3, 8, 8)), apply=apply)
  products = 3 * 5 * 2 * 8 * 8
  assert products <= device_profiles.operations(model, (8,)) <= 1.1 * products
