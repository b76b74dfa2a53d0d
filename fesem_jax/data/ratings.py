"""Ratings of lectures at ETH Zurich, a client per lecturer or per student.

`InstEval` of R's lme4: 73,421 ratings, 1 to 5, by 2,972 students of 1,128 lecturers.
The package pydataset ships the file, so that nothing is downloaded.
"""

import importlib.metadata
import io
import pathlib
import tarfile

import numpy as np

from fesem_jax.data.pool import Pool
from fesem_jax.utils import array_checks
from fesem_jax.utils.safe_files import opened

BY = ('lecturer', 'student')

_MEMBER = 'resources/rdata/csv/lme4/InstEval.csv'
_STUDENT, _LECTURER, _SEMESTER, _AGE, _SERVICE, _DEPARTMENT, _RATING = range(7)
_RATINGS, _DEPARTMENTS = 5, 15
_MOST_SEMESTERS, _MOST_AGE = 8, 6  # How many, and for how many the lecture is past.


def load(by: str = 'lecturer') -> Pool:
  """Features [T, 18] float32, labels 0 to 4: a rating less one.

  Features are the student's semester and the lecture's age as shares of the most,
  whether it is a service lecture, and the department, one of 15 by ones and zeros.
  `by`, one of `BY`, says who is a client. Raises `UserError` if pydataset is not
  installed, or its file is not what it should be.
  """
  package = importlib.metadata.distribution('pydataset')
  path = pathlib.Path(str(package.locate_file('pydataset/resources.tar.gz')))
  table = _read(path)
  where = f'{path}, {_MEMBER}'
  x = np.zeros((len(table), 3 + _DEPARTMENTS), np.float32)
  x[:, 0] = table[:, _SEMESTER] / _MOST_SEMESTERS
  x[:, 1] = table[:, _AGE] / _MOST_AGE
  x[:, 2] = table[:, _SERVICE]
  x[np.arange(len(x)), 2 + table[:, _DEPARTMENT].astype(int)] = 1
  y = array_checks.labels(table[:, _RATING] - 1, where, _RATINGS)
  who = table[:, _STUDENT if by == 'student' else _LECTURER]
  ids, client = np.unique(who, return_inverse=True)
  names = np.array([f'{by}{i:04.0f}' for i in ids])
  ratings = tuple(str(rating) for rating in range(1, _RATINGS + 1))
  return Pool(x, y, _RATINGS, 1.0, client=client, names=names, class_names=ratings)


def _read(path: pathlib.Path) -> np.ndarray:
  """[T, 7] columns of the table, from the student to the rating."""
  with opened(path) as packed:
    with tarfile.open(fileobj=packed, mode='r|') as archive:  # type: ignore[call-overload]
      for member in archive:
        if member.name == _MEMBER and member.isfile():
          file = archive.extractfile(member)
          assert file is not None
          text = file.read().decode()
          break
    _, _, rows = text.partition('\n')
    return np.loadtxt(
      io.StringIO(rows), delimiter=',', quotechar='"', usecols=range(1, 8), ndmin=2
    )
