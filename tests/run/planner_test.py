"""Plans: what the compiler says of runs, and what is said of it."""

import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks import common
from fesem_jax import algorithms
from fesem_jax.core import sharding
from fesem_jax.core.arrangement import arrange
from fesem_jax.run import planner, program_memory, programs
from fesem_jax.run.program_memory import TooLarge
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.commands import spawn
from tests.support.runs import simulate

PROGRAM = """
  %a = f32[4,100]{1,0} all-gather(%x), dimensions={0}
  %b = (f32[8]{0}, bf16[2,3]{1,0}) all-reduce(%y, %z), to_apply=%add
  %c = f32[10]{0} all-reduce-start(%w)
  %d = f32[10]{0} all-reduce-done(%c)
  %e = s32[7]{0} add(%all-gather.1, %f)
"""


def test_collectives_are_read_from_a_program():
  assert program_memory.collectives_of(PROGRAM) == [
    ('all-gather', 1600),
    ('all-reduce', 32 + 12),
    ('all-reduce', 40),
  ]


@pytest.fixture(scope='module')
def planned():
  train = helpers.federation([7, 4, 9, 5, 6, 8, 3, 5, 5])
  test = helpers.federation([2, 1, 3, 2, 2, 2, 1, 1, 2], seed=1)
  local = helpers.local(devices=2, hidden=())
  algorithm = algorithms.build('fesem', local, num_clusters=2)
  return algorithm, (train, test), planner.plan(algorithm, train, test)


@pytest.mark.nightly
def test_a_plan_counts_what_a_run_holds(planned):
  algorithm, splits, result = planned
  local, devices = algorithm.local, algorithm.local.mesh.size
  train, test = arrange(local, *splits)
  state = jax.jit(algorithm.init)(jax.random.key(0), train)

  def num_bytes(tree):
    return sum(x.nbytes for x in jax.tree.leaves(tree))

  assert (result.data_bytes, result.test_bytes) == (
    num_bytes((train, test)),
    num_bytes(test),
  )
  assert result.stack_bytes >= num_bytes(state.client_params) / devices
  whole = num_bytes(state) - num_bytes(state.client_params)
  assert result.state_bytes <= num_bytes(state.client_params) / devices + whole
  assert result.clients_per_device == train.num_clients // devices
  assert [p.name for p in result.programs] == ['start', 'round', 'evaluation']
  # The round overwrites its state.
  assert result.round.memory.aliased >= result.stack_bytes
  assert not common.calls_to_host(result.round.text)
  assert result.peak_bytes >= result.state_bytes + result.data_bytes
  exchanged = program_memory.collectives_of(result.round.text)
  assert exchanged


@pytest.mark.parametrize('topology', ['v9:2x2', 'v5e', 'tpu', ''])
def test_an_unknown_topology_is_refused(topology):
  with pytest.raises(UserError, match='topology'):
    planner.mesh_of(topology)


@pytest.mark.slow
def test_the_command_line_plans_for_this_machine(tmp_path):
  done = spawn(
    'plan', '--algorithm=fesem', '--dataset=digits', '--partition=rotated',
    '--num_clients=20', '--num_devices=2', '--json=plan.json', '--model=logistic',
    cwd=tmp_path,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  made = json.loads((tmp_path / 'plan.json').read_text())
  assert made['num_devices'] == 2
  assert made['clients_per_device'] == 12  # 20 clients and 4 empty places.
  assert made['collectives']['all-reduce']['count'] >= 1
  assert made['compile_seconds'] > 0
  assert made['fits']
  assert made['chip_bytes'] == sharding.host_memory() // 2
  for word in ('start', 'round', 'evaluation', 'all-reduce', 'fits: True'):
    assert word in done.stdout


def test_a_run_that_cannot_fit_says_what_would(monkeypatch):
  train = helpers.federation([7, 4, 9, 5])
  local = helpers.local(hidden=())
  algorithm = algorithms.build('fesem', local, num_clusters=2)

  def run():  # Programs of this process were compiled for the memory that there is.
    programs.clear()
    return simulate(algorithm, train, train, rounds=1, finetune_epochs=0)

  monkeypatch.setattr(sharding, 'memory', lambda device, beside: 1)
  tiny_memory = '^the start: needs .* with 1 bytes; lower clients_per_chunk '
  with pytest.raises(TooLarge, match=tiny_memory) as tiny:
    run()
  used = tiny.value.memory
  monkeypatch.setattr(sharding, 'memory', lambda device, beside: used.peak)
  assert run().summary['deployed']  # Of the programs, the start needs the most.
  monkeypatch.setattr(sharding, 'memory', lambda device, beside: used.peak - 1)
  with pytest.raises(TooLarge, match='streamed'):
    run()


def test_a_program_that_the_compiler_refuses_is_too_large(monkeypatch):
  class Refused:
    def compile(self):
      raise jax.errors.JaxRuntimeError(
        'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for '
        'HLO temporaries (2.50K) exceeds available HBM (1K).'
      )

  x = jnp.zeros(100)
  with pytest.raises(TooLarge, match=r'^a round: needs 2\.9 KiB of a'):
    program_memory.compile_to_fit(Refused(), (x,), 'a round')

  class Broken:
    def compile(self):
      raise jax.errors.JaxRuntimeError('INTERNAL: something else')

  with pytest.raises(jax.errors.JaxRuntimeError, match='something else'):
    program_memory.compile_to_fit(Broken(), (x,), 'a round')
