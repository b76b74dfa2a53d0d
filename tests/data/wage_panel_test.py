"""The panel of wages: clients, standardized targets, damaged files."""

import bz2

import numpy as np
import pytest

from fesem_jax.data import wage_panel
from fesem_jax.utils.errors import UserError

HEAD = 'nr,year,black,exper,hisp,hours,married,educ,union,lwage,expersq,occupation'
ROWS = """13,1980,0,1,0,2672,0,14,0,1.19754,1,9
13,1981,0,2,0,2320,0,14,1,1.85306,4,9
17,1980,1,4,0,2484,1,13,0,1.67596,16,2
17,1981,1,5,0,2804,1,13,0,1.51840,25,2"""


def written(folder, text):
  path = folder / 'wage_panel.csv.bz2'
  path.write_bytes(bz2.compress(text.encode()))
  return path


def test_men_are_clients_and_wages_are_standardized(tmp_path):
  pool = wage_panel.read(written(tmp_path, f'{HEAD}\n{ROWS}\n'))
  assert pool.task == 'regression'
  assert pool.names.tolist() == ['13', '17']
  assert pool.client.tolist() == [0, 0, 1, 1]
  wages = np.array([1.19754, 1.85306, 1.67596, 1.51840])
  np.testing.assert_allclose(
    pool.y[:, 0], (wages - wages.mean()) / wages.std(), rtol=1e-5
  )
  assert pool.x.shape == (4, 9)
  np.testing.assert_array_equal(pool.x[:, 3], 0)  # No Hispanic: no variation.


def test_a_file_cut_short_is_refused(tmp_path):
  path = written(tmp_path, f'{HEAD}\n{ROWS}\n')
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(UserError, match='wage_panel'):
    wage_panel.read(path)
