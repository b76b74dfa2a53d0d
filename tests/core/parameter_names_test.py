"""Names and patterns of parameters, at any depth."""

import pytest

from fesem_jax.core import parameter_names, tree
from fesem_jax.utils.errors import UserError

PARAMS = {
  'norm': {'scale': 1, 'bias': 2},
  'block0': {'conv': {'kernel': 3}, 'norm1': {'scale': 4, 'bias': 5}},
  'logits': {'kernel': 6, 'lora_a': 7},
}


@pytest.mark.parametrize(
  ('names', 'expected'),
  [
    (['logits'], [6, 7]),
    (['norm'], [1, 2]),  # That layer, not those within others.
    (['block*'], [3, 4, 5]),
    (['**/norm*'], [1, 2, 4, 5]),
    (['*/norm*'], [4, 5]),
    (['*norm*'], [1, 2, 4, 5]),
    (['**/scale', 'block0/conv/kernel'], [1, 3, 4]),
    (['*/lora_a', '*/lora_a'], [7]),
    (['block0/norm1/bias'], [5]),
    (['*'], [1, 2, 3, 4, 5, 6, 7]),
    ([], []),
  ],
)
def test_names_choose_layers_and_parameters_at_any_depth(names, expected):
  paths = parameter_names.chosen(PARAMS, names, 'head_layers')
  others, some = parameter_names.split(PARAMS, names)
  flat = parameter_names.without_none(some)
  result = [x for layer in flat.values() for x in _leaves(layer)]
  assert result == expected
  assert len(paths) == len(expected)
  assert parameter_names.split(PARAMS, paths) == (others, some)
  assert tree.merge(others, some) == tree.merge(some, others) == PARAMS
  both = map(parameter_names.without_none, (others, some))
  assert tree.merge(*both) == PARAMS


def _leaves(x):
  return [x] if not isinstance(x, dict) else [y for v in x.values() for y in _leaves(v)]


def test_none_is_in_place_of_whole_layers():
  others, some = parameter_names.split(PARAMS, ['norm', '*/lora_a'])
  assert some == {
    'norm': PARAMS['norm'],
    'block0': None,
    'logits': {'kernel': None, 'lora_a': 7},
  }
  assert others['norm'] is None
  assert others['block0'] is PARAMS['block0']


@pytest.mark.parametrize(
  ('names', 'listed'),
  [
    (['logits', 'dense'], 'no layer dense; expected one of norm, block0, logits'),
    (['*/lora_c'], 'no layer */lora_c; expected one of norm/scale, norm/bias, '),
    ('**/norm*', 'must be a list of names'),
  ],
)
def test_names_that_choose_nothing_are_refused(names, listed):
  with pytest.raises(UserError) as e:
    parameter_names.chosen(PARAMS, names, 'train_layers')
  assert str(e.value).startswith('train_layers')
  assert listed in str(e.value)
