"""Signals that let a run finish its round."""

import signal

import pytest

from experiments import start
from fesem_jax.utils import interrupts

OTHERS = [n for n in interrupts.SIGNALS if n != signal.SIGINT]


@pytest.fixture(autouse=True)
def restored():
  before = {n: signal.getsignal(n) for n in interrupts.SIGNALS}
  for number in OTHERS:
    signal.signal(number, signal.SIG_DFL)
  # Workers of pytest ignore it.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


@pytest.mark.parametrize('number', interrupts.SIGNALS)
def test_a_signal_is_deferred_until_the_end_of_the_round(number, capsys):
  with interrupts.interruptible() as interrupted:
    assert not interrupted()
    signal.raise_signal(number)
    assert interrupted()
    signal.raise_signal(signal.SIGTERM)  # After a scheduler's warning, say.
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
  assert capsys.readouterr().err.count('Finishing this round') == 1
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_handlers_of_the_program_and_ignored_signals_are_left_alone():
  came = []
  signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
  signal.signal(signal.SIGHUP, signal.SIG_IGN)
  start.raise_interrupts()
  with interrupts.interruptible() as interrupted:
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGHUP)
    assert not interrupted()
  assert came == [signal.SIGUSR1]


@pytest.mark.parametrize('number', interrupts.SIGNALS)
def test_outside_of_rounds_binaries_end_as_after_ctrl_c(number):
  start.raise_interrupts()
  with pytest.raises(KeyboardInterrupt):
    signal.raise_signal(number)
