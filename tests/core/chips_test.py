"""TPU chips as their vendor specifies them."""

import pytest

from fesem_jax.core import chips


@pytest.mark.parametrize(
  ('name', 'kind', 'gibibytes'),
  [
    ('v4', 'TPU v4', 32),
    ('v5e', 'TPU v5 lite', 16),
    ('v5p', 'TPU v5', 95),
    ('v6e', 'TPU v6 lite', 32),
  ],
)
def test_a_chip_has_the_memory_that_its_vendor_says(name, kind, gibibytes):
  assert chips.memory_of(kind) == gibibytes * 1024**3
  assert chips.CHIPS[name].kind == kind
  assert chips.CHIPS[name].example.startswith(f'{name}:')


def test_the_memory_of_other_devices_is_unknown():
  assert chips.memory_of('a card') is None
