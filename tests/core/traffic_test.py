"""Messages of methods, counted by hand."""

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
  of = Traffic(lambda known, drawn: Sent(1, 2))
  assert of.of_start(7) == (0, 0)
  assert (of.model, of.whole_batches) == (0, False)
  assert of.known is of.start_up is None
  assert Sent(1, 2).passes == 0
  assert not Drawn(1, IDS, everyone=True).keep_clusters


def test_messages_that_are_the_same_for_all_differ_down_and_up():
  of = traffic.same_for_all(30.0, 20.0)
  assert sent(of) == (30, 20, 0)
  assert sent(traffic.same_for_all(30, 20, 5)) == (30, 20, 5)
  assert (of.model, type(of.model)) == (30, int)


def test_a_start_by_clustering_sends_a_model_up_and_a_common_one_down():
  of = traffic.one_model(LOCAL)
  common = traffic.after_clustering(of)
  assert common.of_start(7) == (7 * P, 7 * P)
  apart = traffic.after_clustering(of, common=False, losses=2)
  assert apart.of_start(7) == (0, 7 * (P + 8))
  chosen = traffic.after_clustering(of, choices=3)
  assert chosen.of_start(7) == (7 * 3 * P, 7 * (P + 4))
