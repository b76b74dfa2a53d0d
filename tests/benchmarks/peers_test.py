"""Simulators are compared on equal work, in the best arrangement of each."""

import numpy as np
import pytest

from benchmarks.peers import comparison, ours, worker
from benchmarks.workloads import WORKLOADS
from tests.support.numpy_peer import NumPy


@pytest.fixture
def small(monkeypatch):
  # W4 with ragged clients, whose last batches are partial, and two local epochs.
  workload = WORKLOADS['W4']._replace(examples=25, ragged=True, epochs=2)
  monkeypatch.setitem(WORKLOADS, 'small', workload)
  return workload


def norms_after_a_round(runner, tmp_path, name, clients, parts):
  """Norms after a round of so many workers, as `processes.Peer` drives them."""
  file = tmp_path / f'models{parts}'
  size = sum(np.prod(shape) for shape in WORKLOADS[name].shapes().values())
  file.write_bytes(bytes(4 * size * parts))
  workers = [worker.Worker(runner) for _ in range(parts)]
  steps = 0
  for part, w in enumerate(workers):
    place = {'memory': str(file), 'part': part, 'parts': parts} if parts > 1 else {}
    steps += w.answer({'load': name, 'clients': clients} | place)['steps']
  for _ in range(2):  # The second round must not add to the first.
    for do in ['round'] if parts == 1 else ['round', 'average']:
      for w in workers:
        w.answer({'do': do})
  return workers[0].answer({'do': 'norms'}), steps


def test_clients_are_dealt_to_processes_by_their_work():
  dealt = worker.split(np.array([4, 1, 1, 3, 3]), 2)
  assert [p.tolist() for p in dealt] == [[0, 1, 2], [3, 4]]
  steps = WORKLOADS['W5'].steps_of(WORKLOADS['W5'].sizes(41))
  parts = worker.split(steps, 3)
  assert sorted(np.concatenate(parts)) == list(range(41))
  assert max(steps[p].sum() for p in parts) < 1.03 * steps.sum() / 3


@pytest.mark.parametrize('clients', [7, 0])
def test_processes_that_split_the_clients_have_the_mean_of_one(
  tmp_path, small, clients
):
  alone, steps = norms_after_a_round(NumPy, tmp_path, 'small', clients, 1)
  assert steps == (small.steps(7) if clients else 1)
  for parts in (2, 3):
    together, same_steps = norms_after_a_round(NumPy, tmp_path, 'small', clients, parts)
    assert same_steps == steps
    assert together == pytest.approx(alone, rel=1e-5)


def test_ours_does_the_work_of_the_equations(tmp_path, small):
  for name, clients, rtol in (('W3', 0, 1e-4), ('small', 6, 0.25)):
    norms = {}
    for runner in (ours.Ours, NumPy):
      norms[runner], steps = norms_after_a_round(runner, tmp_path, name, clients, 1)
      assert steps == (small.steps(6) if clients else 1)
    comparison.check_equal_work(name, norms, rtol)


def test_unequal_work_is_refused():
  norms = {'kernel0 at the start': 1.0, 'change of kernel0': 0.5}
  comparison.check_equal_work('W1', {'a': norms, 'b': norms}, 1e-3)
  less = norms | {'change of kernel0': 0.49}
  with pytest.raises(AssertionError, match=r'W1, change of kernel0: .* 0.49 with b'):
    comparison.check_equal_work('W1', {'a': norms, 'b': less}, 1e-3)
  with pytest.raises(AssertionError, match='other parameters'):
    comparison.check_equal_work('W1', {'a': norms, 'b': {}}, 1e-3)
