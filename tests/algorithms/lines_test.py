"""A method's file reads like its pseudocode, and is short."""

import inspect
import pathlib

from fesem_jax import algorithms

MOST = 150


def test_no_file_of_a_method_is_long():
  files = {inspect.getsourcefile(factory) for factory in algorithms.METHODS.values()}
  lines = {f: pathlib.Path(f).read_text().count('\n') for f in files}
  assert {f: n for f, n in lines.items() if n > MOST} == {}
  assert len(lines) > 30
