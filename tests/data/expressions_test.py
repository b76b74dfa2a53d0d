import dataclasses
from typing import Any

import pytest

from fesem_jax.data import expressions
from fesem_jax.data.expressions import Call, parse, split, split_call
from fesem_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True)
class Rotated:
  groups: Any = 4
  within: Any = None


KINDS = {'rotated': Rotated, 'dirichlet': lambda alpha: alpha}


@pytest.mark.parametrize(
  ('text', 'separators', 'parts'),
  [
    ('rotated(4),labels(2)', ',', ['rotated(4)', 'labels(2)']),
    ('a(b(1,2),[3,4]), c', ',', ['a(b(1,2),[3,4])', 'c']),
    ('table(\'a,b.csv\', x="(")+iid', '+', ['table(\'a,b.csv\', x="(")', 'iid']),
    ('0.1;0.2,1', ',;', ['0.1', '0.2', '1']),
    ('', ',', ['']),
  ],
)
def test_separators_in_brackets_and_quotes_do_not_split(text, separators, parts):
  assert split(text, separators) == parts


@pytest.mark.parametrize(
  ('text', 'calls'),
  [
    ('iid', [Call('iid')]),
    (
      'fesem(4;aggregation=krum(1))',
      [Call('fesem', (4,), {'aggregation': Call('krum', (1,))})],
    ),
    (
      'rotated(groups=[0, 90.5])+dirichlet(1e-1)',
      [Call('rotated', (), {'groups': (0, 90.5)}), Call('dirichlet', (0.1,))],
    ),
    ('npz(/data/a+b=c.npz)', [Call('npz', ('/data/a+b=c.npz',))]),
    (
      'my.module:load(x=-2, y=false, z="4")',
      [Call('my.module:load', (), {'x': -2, 'y': False, 'z': '4'})],
    ),
    (
      'table(f.csv; label=income; drop=(a,))',
      [Call('table', ('f.csv',), {'label': 'income', 'drop': ('a',)})],
    ),
  ],
)
def test_parse_and_write_back(text, calls):
  assert parse(text) == calls
  assert parse('+'.join(map(str, calls))) == calls


def test_split_call_leaves_texts():
  name, arguments = split_call(' fesem(4; aggregation=krum(1) ;lr=0.10)')
  assert (name, arguments) == (
    'fesem',
    {0: '4', 'aggregation': 'krum(1)', 'lr': '0.10'},
  )


def test_build_calls_kinds_within_others():
  built = expressions.build('rotated(2, within=dirichlet(0.1))+dirichlet(3)', KINDS)
  assert built == [Rotated(2, 0.1), 3]


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('rotate(4)', 'partition: .*did you mean rotated'),
    ('rotated(group=4)', "partition: rotated: .*'group'"),
    ('dirichlet', 'partition: dirichlet: missing'),
    ('rotated(4', 'lacks \\)'),
    ('rotated(4]', 'unbalanced'),
    ("rotated('a)", 'unbalanced'),
    ('rotated(4)x', 'is not NAME'),
    ('rotated(,)', 'empty argument'),
    ('rotated+', 'is not NAME'),
  ],
)
def test_mistakes_are_named(text, message):
  with pytest.raises(UserError, match=message):
    expressions.build(text, KINDS, 'partition')
