"""Each rule speaks on its bad example and not on its good one."""

import pytest

from fesem_jax.checks import examples, rules


@pytest.mark.parametrize('rule', rules.RULES.values(), ids=lambda rule: rule.id)
def test_rule_speaks_on_its_bad_example_alone(rule):
  says, silence = examples.answers(rule)
  assert says
  assert not silence
  assert max(len(f'{rule.id} {text}') for text in says) <= 100
  assert len(rule.find.__doc__.split('\n\n')) == 2  # What it finds, and a remedy.
