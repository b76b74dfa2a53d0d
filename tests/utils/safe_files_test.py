"""Tests of bounded reading."""

import gzip
import tracemalloc

import pytest

from fesem_jax.utils.safe_files import BoundedReader


@pytest.mark.parametrize('write', [lambda raw: raw, gzip.compress])
def test_reading_takes_memory_as_the_file_and_not_as_its_bound(tmp_path, write):
  raw = b'a,b\n1,2\n' * 1000
  (tmp_path / 'table').write_bytes(write(raw))
  tracemalloc.start()
  try:
    with BoundedReader(tmp_path / 'table') as file:
      assert file.read() == raw
    _, most = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert most < 2**26
