"""Rules on runs, before they begin and after they end."""

from collections.abc import Iterator

import jax
import numpy as np

from fesem_jax.checks.rules import Outcome, Request, rule


@rule(
  301,
  bad='request(of=local(lr_schedule=lambda round: 0.1))',
  good='request(of=local(lr_schedule=lambda round: 1.0))',
)
def learning_rates(run: Request) -> Iterator[str]:
  """`lr_schedule` gives learning rates, but it multiplies those of the optimizer."""
  schedule = run.algorithm.local.lr_schedule
  if schedule is not None:
    numbers = np.linspace(0, run.rounds - 1, 100).astype(np.int32)
    most = float(jax.lax.map(lambda i: schedule(i) + 0.0, numbers).max())
    if most < 0.5:
      yield f'lr_schedule is at most {most:.3g}: it multiplies the learning rate'


@rule(302, bad="request('fed_avg', patience=3)", good="request('fesem', patience=3)")
def never_patient(run: Request) -> Iterator[str]:
  """Patience waits for clients that move between clusters, and there are none."""
  if run.patience and not run.has_clusters:
    yield 'patience never ends a run without clusters: give BestRound(stop_after=...)'


@rule(
  303,
  bad='request(validation=[split(seed=1)])',
  good='request(validation=[split(seed=9)])',
)
def chosen_by_test(run: Request) -> Iterator[str]:
  """The best round is chosen by examples that it is trained or reported on."""
  for name, split in run.data._asdict().items():
    if any(x.x is split.x or np.array_equal(x.x, split.x) for x in run.validation):
      yield f'the {name} examples choose the best round: give those of data.hold_out'


@rule(304, bad='request(trainings=2)', good='request(trainings=1)')
def epsilon_of_another(run: Request) -> Iterator[str]:
  """Epsilon counts one model of a client in a round; the method sends more or fewer."""
  if run.trainings not in (None, 1):
    yield f'clients train {run.trainings} times in a round: epsilon counts one model'


@rule(401, bad='outcome(sizes=[4, 0])', good='outcome(sizes=[2, 2])')
def one_group(run: Outcome) -> Iterator[str]:
  """A clustered method has found no groups; try another K, threshold or seed."""
  clusters = run.summary['clusters']
  sizes = clusters['sizes'] if clusters and clusters['ari'] != 1 else ()
  if len(sizes) > 1 and max(sizes) == sum(sizes) > 1:
    yield 'all clients are in one cluster, as in fed_avg: try another K or seed'


@rule(402, bad='outcome(micro_accuracy=0.5)', good='outcome()')
def by_chance(run: Outcome) -> Iterator[str]:
  """After five rounds, the models are no better than one answer for all examples."""
  deployed, test = run.summary['deployed'], run.test
  if len(run.history) < 5:
    return
  accuracy, r2 = (deployed.get(f'micro_{name}') for name in ('accuracy', 'r2'))
  if test.task == 'classification' and accuracy is not None:
    frequent = np.bincount(np.asarray(test.y)).max() / len(test.y)
    if accuracy < frequent + 0.05 * (1 - frequent):
      yield f'accuracy {accuracy:.3f} is by chance: check features, rate and last layer'
  if r2 is not None and not r2 > 0:
    yield f'R2 {r2:.3f} is no better than the mean: check features and rate'


@rule(403, bad='outcome(micro_loss=np.nan)', good='outcome()')
def not_finite(run: Outcome) -> Iterator[str]:
  """Updates that are not finite are left out, or the loss of test examples is not."""
  if failed := sum(record.get('failed', 0) for record in run.history):
    yield f'{failed} updates were not finite and are left out: lower the learning rate'
  if not np.isfinite(run.summary['deployed'].get('micro_loss') or 0.0):
    yield 'the test loss is not finite: lower the learning rate'


@rule(404, bad='outcome(trained=0.25)', good='outcome(trained=1.0)')
def never_trained(run: Outcome) -> Iterator[str]:
  """Personal models of clients that never took part are the random first model."""
  share, count = run.summary.get('trained'), run.summary['num_clients']
  if share is not None and (lacking := round((1 - share) * count)):
    yield f'{lacking} of {count} clients never trained: run more rounds'
