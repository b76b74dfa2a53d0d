"""How several processes find each other, and what they are told where they do not."""

import socket
import threading
import time

import pytest

from fesem_jax.utils import rendezvous
from fesem_jax.utils.errors import UserError
from tests.support.helpers import free_address


def met(*hellos, seconds=5.0):
  """What a meeting comes to for each (process_id, count): None or an error."""
  address, outcome = free_address(), {}

  def attend(place, process_id, count):
    try:
      outcome[place] = rendezvous.wait_for_all(address, process_id, count, seconds)
    except UserError as e:
      outcome[place] = str(e).replace(address, 'ADDRESS')

  threads = [
    threading.Thread(target=attend, args=(i, *hello)) for i, hello in enumerate(hellos)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return [outcome[i] for i in range(len(hellos))]


def test_processes_meet_in_any_order():
  assert met((2, 3), (0, 3), (1, 3)) == [None] * 3


def test_numbers_of_processes_that_differ_are_one_sentence_in_each():
  message = 'num_processes: 3 in process 1, 2 in first'
  assert met((0, 2), (1, 3)) == [message] * 2


def test_two_processes_of_one_number_are_refused():
  messages = met((0, 3), (1, 3), (1, 3))
  assert messages == ['process_id: two are 1; number them from 0 to 2'] * 3


def test_processes_that_do_not_come_are_named():
  messages = met((0, 4), (2, 4), seconds=1.0)
  assert messages[0] == messages[1]
  assert messages[0].startswith('num_processes: process 1, 3 did not come to ADDRESS')


def test_a_coordinator_that_does_not_answer_is_named():
  (messages,) = met((1, 2), seconds=0.5)
  assert messages.startswith('coordinator_address: ADDRESS did not answer within 0.5 s')


def test_strangers_at_the_address_are_ignored():
  address, messages = free_address(), []
  first = threading.Thread(
    target=lambda: messages.append(rendezvous.wait_for_all(address, 0, 2, 20))
  )
  first.start()
  place = ('127.0.0.1', int(address.rpartition(':')[2]))
  for words in (b'GET / HTTP/1.1\r\n\r\n', b'{"a": 1}\n', b'x' * 5000):
    while True:
      try:
        stranger = socket.create_connection(place)
        break
      except ConnectionRefusedError:
        time.sleep(0.01)
    with stranger:
      stranger.sendall(words)
  rendezvous.wait_for_all(address, 1, 2, 20)
  first.join()
  assert messages == [None]


def test_a_port_in_use_is_refused():
  with socket.create_server(('127.0.0.1', 0)) as other:
    address = f'127.0.0.1:{other.getsockname()[1]}'
    with pytest.raises(UserError, match='already in use'):
      rendezvous.wait_for_all(address, 0, 2, 1.0)


def test_a_name_of_this_machine_without_process_0_is_refused_soon(monkeypatch):
  monkeypatch.setattr(rendezvous, '_LOCAL_SECONDS', 0.2)
  address = free_address().replace('127.0.0.1', 'localhost')
  with pytest.raises(UserError, match='coordinator_address: localhost is this machine'):
    rendezvous.wait_for_all(address, 1, 2, 60)
