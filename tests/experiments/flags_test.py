"""The tables of flags, and the fields of partitions among them."""

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import run as experiment
from experiments.flag_tables import GROUPS
from fesem_jax.data.partitions.value import FIELDS, Partition
from tests.experiments.binaries_test import QUICK


@pytest.fixture
def configured():
  """The configuration of some flags."""
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()

  @flagsaver.flagsaver
  def made(*given):
    flags.FLAGS(['run', *QUICK, *given])
    return experiment.chosen_configuration()

  return made


def test_every_flag_is_in_the_tables_once():
  names = [flag.name for group in GROUPS.values() for flag in group]
  assert len(names) == len(set(names))


def test_flags_of_partitions_have_the_defaults_of_their_fields(configured):
  configured()
  value = Partition()
  for field in FIELDS:
    if field in flags.FLAGS:
      default = flags.FLAGS[field].default
      assert (tuple(default) if default == [] else default) == getattr(value, field)
