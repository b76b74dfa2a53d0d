"""Configurations of earlier versions, which lack newer flags, are those of today."""

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import flags as experiment_flags
from experiments import run as experiment
from experiments.build import load_data
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


def test_newer_flags_are_named_where_they_are_given_only(configured):
  plain = configured()
  newer = set(experiment_flags.filled({}))
  assert {'rotations', 'labels_per_client', 'text_stride'} <= newer
  assert not newer & set(plain)
  given = configured('--rotations=0,180', '--labels_per_client=2')
  assert given == plain | {'rotations': ['0', '180']}
  train, _ = load_data(given)  # With a configuration as config.json holds it.
  assert train.info.cluster_names == ('0 degrees', '180 degrees')
  older, _ = load_data(plain)
  assert older.info.cluster_names[1] == '90 degrees'


def test_every_flag_is_in_the_tables_once():
  names = [flag.name for group in GROUPS.values() for flag in group]
  assert len(names) == len(set(names))


def test_every_field_of_a_partition_is_a_flag_with_its_default(configured):
  configured()
  value = Partition()
  for field in FIELDS:
    if field != 'name':
      default = flags.FLAGS[field].default
      assert (tuple(default) if default == [] else default) == getattr(value, field)
