"""Faults that are put back are in the code of today, and leave it as it was."""

import pytest

from benchmarks import faults


def test_faults_fit_the_code_and_the_tests_of_today():
  found = faults.listed()
  assert {f.sentence: said for f in found if (said := faults.misfit(f))} == {}
  assert len(found) > 60


def test_a_file_is_as_it_was_after_an_interruption(tmp_path, monkeypatch):
  monkeypatch.setattr(faults, 'ROOT', tmp_path)
  path = tmp_path / 'code.py'
  path.write_text('x = 1\n')
  fault = faults.Fault('x was 2.', 'code.py::test_x', 'code.py', 'x = 1', 'x = 2')

  def interrupted():
    with faults.put_back(fault):
      assert path.read_text() == 'x = 2\n'
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    interrupted()
  assert path.read_text() == 'x = 1\n'
  assert faults.misfit(fault) == 'there is no test code.py::test_x'
  assert '0 times' in faults.misfit(fault._replace(old='x = 3'))
