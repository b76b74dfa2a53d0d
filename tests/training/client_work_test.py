"""Learning rates, epochs and steps of each client."""

import jax
import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax import algorithms, models
from fesem_jax.algorithms.common import stragglers
from fesem_jax.core.client_work import ClientWork
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import assert_close, initial, run, unflatten

SIZES = (6, 9, 4)


@pytest.mark.parametrize('shared_start', ['off', 'on'])
@pytest.mark.parametrize('kind', ['epochs', 'steps'])
def test_own_rates_epochs_and_steps_match_float64_reference(kind, shared_start):
  rates, amount = [1.0, 0.5, 2.0], [3, 1, 2]
  most = {kind: 3}
  local = helpers.local(**most)._replace(
    shared_start=shared_start, work=ClientWork(rates, **{kind: amount})
  )
  data = helpers.federation(SIZES)
  algorithm = algorithms.build('fed_avg', local)
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  for r in (1, 2):
    key, each = jax.random.fold_in(jax.random.key(9), r), []
    for i in range(3):
      schedule = local.schedule._replace(**{kind: amount[i]})
      batches = helpers.batches(data, schedule, i, key)
      each.append(
        reference.flat(reference.local_sgd(model, batches, 0.1 * rates[i])[0])
      )
    model = unflatten(np.average(each, axis=0, weights=SIZES), model)
  state, infos = run(algorithm, data, rounds=2)
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, reference.flat(model), rtol=1e-3)
  assert infos[0].steps == (sum(amount) if kind == 'steps' else 3 * 2 + 3 + 2)


def test_clients_keep_their_work_where_a_run_orders_them_by_size():
  data, found = helpers.federation((3, 9, 6)), []
  model = models.build('logistic', helpers.SHAPE, 3)
  for rates in ([1e-6, 1.0, 1.0], [1.0, 1e-6, 1.0]):
    local = fj.local_training(model, optax.sgd(0.5))
    local = local._replace(work=ClientWork(rates))
    result = fj.simulate(
      algorithms.build('non_fed', local), data, data, rounds=1, finetune_epochs=0
    )
    found.append(np.abs(result.models.personal['logits']['bias']).max(axis=1))
  assert [int(each.argmin()) for each in found] == [0, 1]


def test_stragglers_draw_from_1_to_their_own_epochs():
  data, key = helpers.federation([4] * 12), jax.random.key(0)
  work = ClientWork(epochs=[3] * 6 + [20] * 6)

  def drawn(local):
    return stragglers.epochs(local, data, helpers.everyone(data), key, 1.0).tolist()

  found = drawn(helpers.local(epochs=20)._replace(work=work))
  alike = [drawn(helpers.local(epochs=most)) for most in (3, 20)]
  assert found == alike[0][:6] + alike[1][6:]
  assert set(found[:6]) == {1, 2, 3}


def test_clients_keep_their_epochs_and_steps_where_they_are_reordered():
  data = helpers.federation((3, 9, 6)).reorder(np.array([1, 2, 0]))
  for kind, wanted in (('epochs', [2 * 3, 3 * 2, 1]), ('steps', [2, 3, 1])):
    work = ClientWork(**{kind: [1, 2, 3]})
    local = helpers.local(**{kind: 3})._replace(work=work)
    assert local.num_steps(data, np.arange(3)).tolist() == wanted


def test_local_work_that_does_not_fit_is_refused():
  model = models.build('logistic', helpers.SHAPE, 3)

  def local(**work):
    return fj.local_training(model, optax.sgd(0.1))._replace(work=ClientWork(**work))

  data = helpers.federation(SIZES)
  for work in ({'rates': [1.0, 2.0]}, {'epochs': [4] * len(SIZES)}):
    algorithm = algorithms.build('fed_avg', local(**work))
    with pytest.raises(UserError, match='ClientWork'):
      fj.simulate(algorithm, data, data, rounds=1)
