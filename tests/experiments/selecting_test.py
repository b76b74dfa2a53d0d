"""--select, and the files that it reads."""

import pytest

from experiments import selecting
from fesem_jax.core.selection import available
from fesem_jax.utils.errors import UserError


def config(select, count=2, **others):
  return {'select': select, 'clients_per_round': count, **others}


def test_the_flag_names_a_selection(tmp_path):
  trace = tmp_path / 'trace.csv'
  trace.write_text('\ufeffclient,from,to,note\nc1,1,2,x\n"c,3",2,5,\n')
  assert selecting.build(config('uniform', 3), 20) == 3
  found = selecting.build(config('power_of_choice:5', 0.1), 20)
  assert found.name == 'power_of_choice(2, candidates=5)'
  rows = [('c1', 1, 2), ('c,3', 2, 5)]
  assert selecting.build(config(f'trace:{trace}'), 20).name == available(2, rows).name


def test_a_run_is_of_the_contents_of_its_file(tmp_path):
  trace = tmp_path / 'trace.csv'
  trace.write_text('client,from,to\nc1,1,2\n')
  first = selecting.identity(config(f'trace:{trace}'))
  trace.write_text('client,from,to\nc1,1,3\n')
  assert first != selecting.identity(config(f'trace:{trace}'))
  assert selecting.identity(config('power_of_choice:5')) == {}
  assert selecting.identity({}) == {}


@pytest.mark.parametrize(
  ('select', 'count'),
  [
    ('power_of_choice', 2), ('power_of_choice:x', 2), ('power_of_choice:5', 0),
    ('best', 2), ('uniform:3', 2), ('trace:', 2),
  ],
)  # fmt: skip
def test_selections_that_lack_something_are_refused(select, count):
  with pytest.raises(UserError, match='select'):
    selecting.build(config(select, count), 20)
