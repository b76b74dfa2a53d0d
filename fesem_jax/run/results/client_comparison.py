"""Two runs compared client by client."""

from typing import TYPE_CHECKING, Any

from fesem_jax.evaluation.paired import paired_difference
from fesem_jax.run.results.client_table import KINDS, counted
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import check_choice

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


def compare_clients(a: Any, b: Any, metric: str = '') -> 'DataFrame':
  """Compares a metric of two runs of the same clients, client by client.

  Args:
    a: a run, of `simulate` or `load_run`, or its frame of clients.
    b: another run, its clients in any order.
    metric: a column of `clients`, as 'deployed_f1'; '' is the first one.

  Returns:
    A row for each honest client that has the metric in both runs, by `difference`:
    `client`, `a`, `b` and `difference`, a - b. `attrs` has the `metric`, the `mean`
    difference, and the ends `low` and `high` of its 95 % interval over clients like
    these, at the models of these two runs.

  Raises:
    UserError: if the runs have other clients, or lack the metric.
  """
  first, second = (getattr(run, 'clients', run) for run in (a, b))
  metrics = [c for c in first if c.startswith(KINDS) and c in second]
  metric = metric or metrics[0]
  check_choice('metric', metric, tuple(metrics))
  names = [frame['client'] for frame in (first, second)]
  same = names[0].is_unique and sorted(names[0]) == sorted(names[1])
  check(same, 'clients: must have unique names, the same ones in both runs')
  first, second = (counted(t).set_index('client')[metric] for t in (first, second))
  frame = first.to_frame('a').join(second.rename('b'), how='inner').dropna()
  check(len(frame), f'metric: no client has {metric} in both runs')
  mean, low, high, _ = paired_difference(frame['a'].tolist(), frame['b'].tolist())
  frame['difference'] = frame['a'] - frame['b']
  frame = frame.sort_values('difference', kind='stable').reset_index()
  frame.attrs = {'metric': metric, 'mean': mean, 'low': low, 'high': high}
  return frame
