"""A result that a workdir holds is not replaced by another one."""

import json

import pytest

from experiments import held_results
from fesem_jax.utils.errors import WorkdirError


def checks(path):
  held_results.check_settings(path, {})
  held_results.check_rows(path, [1, 2], 3)


@pytest.mark.parametrize(
  'text',
  ['{"settings": {}, "rows": [{"num_clu', '', '[]', '{}',
   '{"settings": {}, "rows": [1]}', '{"settings": {}, "rows": [{}]}',
   '{"settings": {}, "rows": null}', '{"settings": {}, "seeds": 3}'],
)  # fmt: skip
def test_a_damaged_result_is_named(tmp_path, text):
  path = tmp_path / 'select_k.json'
  path.write_text(text)
  with pytest.raises(WorkdirError, match=r'select_k\.json is damaged; delete'):
    checks(path)
  assert path.read_text() == text


def test_rows_and_seeds_are_not_lost(tmp_path):
  path = tmp_path / 'select_k.json'
  held_results.check_rows(path, [1], 1)
  held = {'settings': {}, 'rows': [{'num_clusters': 3}], 'seeds': [0, 1]}
  path.write_text(json.dumps(held))
  held_results.check_settings(path, {})
  held_results.check_rows(path, [3, 4], 2)
  with pytest.raises(WorkdirError, match='leaves out K = 3'):
    held_results.check_rows(path, [4], 2)
  with pytest.raises(WorkdirError, match='is of 2 seeds'):
    held_results.check_rows(path, [3], 1)
