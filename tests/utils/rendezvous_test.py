"""How several processes find each other, and what they are told where they do not."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fesem_jax.utils import rendezvous
from fesem_jax.utils.errors import UserError
from tests.support.helpers import free_address


@pytest.mark.parametrize(
  ('hellos', 'message'),
  [
    ([(2, 3), (0, 3), (1, 3)], None),
    ([(0, 2), (1, 3)], 'num_processes: 3 in process 1, 2 in first'),
    ([(0, 3), (1, 3), (1, 3)], 'process_id: two are 1; number them from 0 to 2'),
    ([(0, 4), (2, 4)], 'num_processes: process 1, 3 did not come to ADDRESS'),
    ([(1, 2)], 'coordinator_address: ADDRESS did not answer within 2 s'),
  ],
)
def test_all_processes_learn_the_outcome(hellos, message):
  address = free_address()

  def attend(hello):
    try:
      return rendezvous.wait_for_all(address, *hello, 2)
    except UserError as e:
      return str(e).replace(address, 'ADDRESS')

  with ThreadPoolExecutor() as pool:
    for outcome in pool.map(attend, hellos):
      assert outcome is message or outcome.startswith(message)


def test_strangers_at_the_address_are_ignored():
  address = free_address()
  place = ('127.0.0.1', int(address.rpartition(':')[2]))
  with ThreadPoolExecutor() as pool:
    first = pool.submit(rendezvous.wait_for_all, address, 0, 2, 20)
    for words in (b'GET / HTTP/1.1\r\n\r\n', b'{"a": 1}\n', b'x' * 5000):
      while True:
        try:
          with socket.create_connection(place) as stranger:
            stranger.sendall(words)
          break
        except ConnectionRefusedError:
          time.sleep(0.01)
    rendezvous.wait_for_all(address, 1, 2, 20)
    assert first.result() is None


def test_a_port_in_use_is_refused():
  with socket.create_server(('127.0.0.1', 0)) as other:
    address = f'127.0.0.1:{other.getsockname()[1]}'
    with pytest.raises(UserError, match='already in use'):
      rendezvous.wait_for_all(address, 0, 2, 1.0)


def test_a_name_of_this_machine_without_process_0_is_refused_soon(monkeypatch):
  monkeypatch.setattr(rendezvous, '_LOCAL_SECONDS', 0.2)
  address = free_address().replace('127.0.0.1', 'localhost')
  with pytest.raises(UserError, match='coordinator_address: localhost has no process'):
    rendezvous.wait_for_all(address, 1, 2, 60)
