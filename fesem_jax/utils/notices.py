"""Warnings about a user's input that a process says once."""

import functools

from absl import logging


@functools.cache
def warn_once(sentence: str) -> None:
  """Logs a warning, unless this process has logged the same sentence before.

  A comparison loads its data for every method, and a notebook for every cell.
  """
  logging.warning('%s', sentence)
