"""Text on the outcome of runs."""

from experiments import outcome


def test_one_of_many_runs_is_described_in_a_line():
  scores = {'micro_accuracy': 0.9736, 'macro_f1': 0.5}
  found = {'deployed': scores, 'finetuned': scores | {'micro_accuracy': 1.0}}
  text = 'deployed micro-accuracy 97.4 %, fine-tuned 100.0 %'
  assert outcome.line(found, 2.06) == f'{text}, 2.1 s'
  assert outcome.line(found | {'clusters': None}, 0) == f'{text}, 0.0 s'
  clusters = {'clusters': {'ari': 0.955}}
  assert outcome.line(found | clusters, 1) == f'{text}, ARI 0.95, 1.0 s'
  unknown = {'clusters': {'ari': None}}
  assert outcome.line(found | unknown, 1) == f'{text}, 1.0 s'
  errors = {'task': 'regression', 'deployed': {'micro_rmse': 0.12345}}
  errors |= {'finetuned': {'micro_rmse': 2.0}}
  assert outcome.line(errors, 1) == 'deployed micro-rmse 0.123, fine-tuned 2.000, 1.0 s'
