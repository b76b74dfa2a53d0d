"""A few mutations of every format, by night more; `make fuzz` tries 500 of each."""

import pytest

from tests.fuzz import trying
from tests.fuzz.formats import FORMATS
from tests.support.nights import rest_by_night

DAY, NIGHT = range(2), range(2, 20)


@pytest.fixture(scope='module')
def box(tmp_path_factory):
  return tmp_path_factory.mktemp('fuzz')


@pytest.mark.parametrize('name', rest_by_night(FORMATS, by_day=8))
@pytest.mark.parametrize(
  'numbers', [DAY, pytest.param(NIGHT, marks=pytest.mark.nightly)], ids=['few', 'many']
)
def test_a_spoiled_file_is_refused_in_a_sentence_or_read(name, numbers, box):
  made = list(trying.tried(name, numbers, 1, box))
  assert [m for m in made if m['outcome'] not in ('sentence', 'accepted')] == []


def test_faults_are_noticed(tmp_path, monkeypatch):
  def read(folder):
    evil = folder.parent / 'evil'
    evil.write_text('')

  form = FORMATS['silhouettes']
  for reader, fault in ((read, 'file'), (lambda folder: 1 / 0, 'exception')):
    monkeypatch.setitem(FORMATS, 'silhouettes', form._replace(read=reader))
    (made,) = trying.tried('silhouettes', [0], 0, tmp_path)
    assert made['outcome'] == fault
