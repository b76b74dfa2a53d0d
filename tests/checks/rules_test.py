"""Each rule speaks on its bad example and not on its good one."""

import pytest

import fesem_jax as fj
from fesem_jax.checks import examples, local, rules


@pytest.mark.parametrize('rule', rules.RULES.values(), ids=lambda rule: rule.id)
def test_rule_speaks_on_its_bad_example_alone(rule):
  says, silence = examples.answers(rule)
  assert says
  assert not silence
  assert max(len(f'{rule.id} {text}') for text in says) <= 100
  assert '\n' not in rule.find.__doc__  # The message has the remedy.


def test_noise_and_compression_of_the_package_draw_from_their_keys():
  subject = examples.local()
  private = fj.differential_privacy(0.5, 0.0, where='client', delta=0)
  for sends in (private, *map(fj.compression, ('random_k(0.1)', 'quantize(8)'))):
    changed = subject._replace(local=subject.local._replace(sends=sends))
    assert not list(local.same_draws(changed))
