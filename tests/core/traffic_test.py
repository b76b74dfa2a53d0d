"""Messages of methods, counted by hand."""

from fesem_jax.core import traffic
from tests.support import helpers

LOCAL = helpers.local()
P = traffic.bytes_of_model(LOCAL)


def test_a_start_by_clustering_sends_a_model_up_and_a_common_one_down():
  of = traffic.one_model(LOCAL)
  common = traffic.after_clustering(of)
  assert common.start_bytes(7) == (7 * P, 7 * P)
  apart = traffic.after_clustering(of, common=False, losses=2)
  assert apart.start_bytes(7) == (0, 7 * (P + 8))
  chosen = traffic.after_clustering(of, choices=3)
  assert chosen.start_bytes(7) == (7 * 3 * P, 7 * (P + 4))
