"""Messages of methods, counted by hand."""

import jax
import numpy as np

from fesem_jax.core import traffic
from fesem_jax.core.traffic import Drawn, Sent, Traffic
from tests.support import helpers

LOCAL = helpers.local()
P = traffic.bytes_of_model(LOCAL)
IDS = np.arange(3)


def sent(of, number=1, known=None, **drawn):
  return of.of_round(known, Drawn(number, IDS, everyone=False, **drawn))[:3]


def test_by_default_there_is_one_model_and_nothing_before_the_first_round():
  of = Traffic(('down', 'up', ''), lambda known, drawn: Sent(1, 2))
  assert of.of_start(7) == (0, 0)
  assert (of.model, of.num_models, of.whole_batches) == (0, 1, False)
  assert of.known is of.start_up is None
  assert Sent(1, 2).passes == 0
  drawn = Drawn(1, IDS, everyone=True)
  assert (drawn.by_loss, drawn.hold) == (False, False)


def test_clients_choose_by_loss_beside_those_that_did_already():
  first = Drawn(1, IDS, everyone=False, by_loss=np.array([True, False, False]))
  assert first.choosing(np.array([False, False, True])).by_loss.tolist() == [
    True,
    False,
    True,
  ]
  none = Drawn(1, IDS, everyone=False)
  assert none.choosing(np.array([False, True, False])).by_loss.tolist() == [
    False,
    True,
    False,
  ]
  assert none.choosing(False).by_loss.tolist() == [False] * 3


def test_messages_that_are_the_same_for_all_differ_down_and_up():
  of = traffic.same_for_all(('a', 'b'), 30.0, 20.0)
  assert of.words == ('a', 'b', '')
  assert sent(of) == (30, 20, 0)
  assert sent(traffic.same_for_all(('a', 'b'), 30, 20, 5)) == (30, 20, 5)
  assert (of.model, type(of.model)) == (30, int)


def test_the_size_of_one_model_and_their_number_are_known():
  for of, num_models in (
    (traffic.one_model(LOCAL), 1),
    (traffic.own_center(LOCAL, 4), 4),
    (traffic.all_in_use(LOCAL, 2, None), 1),
    (traffic.with_extra_round(LOCAL, 2, None), 1),
    (traffic.with_first_change(LOCAL, 1, None), 1),
  ):
    assert (of.model, of.num_models) == (P, num_models)
    assert len(of.words) == 3


def test_layers_that_are_not_sent_have_no_bytes():
  layers = LOCAL.model.init(jax.random.key(0))
  first, *others = layers
  left = sum(x.size for x in jax.tree.leaves([layers[name] for name in others]))
  assert traffic.bytes_of_model(LOCAL, (first,)) == 4 * left > 0
  assert traffic.bytes_of_model(LOCAL, tuple(layers)) == 0


def test_methods_without_messages_send_nothing():
  of = traffic.nothing()
  assert (sent(of), of.model) == ((0, 0, 0), 0)


def test_clients_that_choose_by_loss_receive_and_pass_all_centers():
  of = traffic.own_center(LOCAL, 4)
  down, up, passes = sent(of, by_loss=np.array([False, True, False]))
  assert (down.tolist(), up, passes.tolist()) == ([P, 4 * P, P], P, [0, 4, 0])


def test_a_start_by_clustering_sends_a_model_up_and_a_common_one_down():
  of = traffic.own_center(LOCAL, 4)
  common = traffic.after_clustering(of)
  assert common.of_start(7) == (7 * P, 7 * P)
  assert common.words[2].startswith('a common first model down, the model')
  apart = traffic.after_clustering(of, common=False, losses=2)
  assert apart.of_start(7) == (0, 7 * (P + 8))
  assert apart.words == (
    *of.words[:2],
    'the model that clusters are made from up, up to 2 training losses',
  )
  chosen = traffic.after_clustering(of, choices=3)
  assert chosen.of_start(7) == (7 * 3 * P, 7 * (P + 4))
  assert chosen.words[:2] == of.words[:2]
  assert chosen.words[2].startswith('3 first models down, the best')
  assert len(common.words) == len(chosen.words) == 3
  assert sent(chosen, by_loss=True)[0].tolist() == 4 * P


def test_models_in_use_are_compared_from_the_second_round_on():
  of = traffic.all_in_use(LOCAL, 1, lambda state: state)
  assert sent(of, 1, 3) == (P, P, 0)
  assert sent(of, 2, 3) == sent(of, 3, 3) == (4 * P, P + 12, 3)
  assert of.known(5) == 5
  assert of.of_start(7) == (0, 7 * 4)
  third = traffic.all_in_use(LOCAL, 3, lambda state: state)
  assert [sent(third, n, 1)[2] for n in range(1, 9)] == [0, 0, 0, 1, 0, 0, 1, 0]


def test_a_descriptor_goes_up_in_its_round_alone():
  of = traffic.with_extra_round(LOCAL, 2, lambda state: 2 * state)
  assert of.known(5) == 10
  assert sent(of, 2, 10) == (P, P + 40, 1)
  assert sent(of, 1, 10) == sent(of, 3, 10) == (P, P, 0)


def test_new_clients_train_a_third_model_once():
  joined = np.array([True, False, True])
  for epochs, passes in ((0, 3), (1, 3), (2, 6)):
    of = traffic.with_first_change(LOCAL, epochs, lambda state: joined)
    down, up, extra = sent(of, known=of.known(None))
    assert down.tolist() == up.tolist() == [2 * P, 3 * P, 2 * P]
    assert extra.tolist() == [0, passes, 0]
