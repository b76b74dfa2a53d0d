"""What methods say of the models of clients."""

import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.types import Cohort
from fesem_jax.utils.errors import UserError

CENTERS = {'a': jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}
OWN = {'a': jnp.arange(8.0).reshape(4, 2)}
CHOICE = jnp.array([2, 0, 2, 1], jnp.int32)
WEIGHTS = jnp.array([[0.1, 0.9, 0.0], [0.4, 0.3, 0.3], [0.2, 0.2, 0.6], [0.5, 0.5, 0]])


def test_each_client_has_the_center_that_it_chose():
  models = ClientModels(CENTERS, CHOICE)
  np.testing.assert_array_equal(models.params(4)['a'], CENTERS['a'][CHOICE])
  assert models.clusters() is CHOICE
  assert models.has_clusters()
  assert models.num_clusters() == models.num_models() == 3
  some = models.of(Cohort(jnp.array([3, 0]), everyone=False))
  np.testing.assert_array_equal(some.params(2)['a'], CENTERS['a'][jnp.array([1, 2])])
  assert some.shared is CENTERS


def test_without_a_choice_all_have_the_first_model():
  models = ClientModels(CENTERS)
  np.testing.assert_array_equal(models.params(2)['a'], [[1, 2], [1, 2]])
  assert models.clusters() is None
  assert not models.has_clusters()


def test_personal_models_and_layers():
  own = ClientModels(personal=OWN)
  np.testing.assert_array_equal(own.params(4)['a'], OWN['a'])
  assert own.num_models() == own.num_clusters() == 0
  both = ClientModels({**CENTERS, 'b': None}, CHOICE, {'a': None, 'b': OWN['a']})
  result = both.params(4)
  np.testing.assert_array_equal(result['a'], CENTERS['a'][CHOICE])
  np.testing.assert_array_equal(result['b'], OWN['a'])
  member = ClientModels(personal=OWN, membership=WEIGHTS[:, :2])
  assert member.has_clusters()
  assert (member.num_clusters(), member.num_models()) == (2, 0)
  assert member.clusters().tolist() == [1, 0, 0, 0]


def test_the_cluster_of_a_mixture_is_the_one_of_greatest_weight():
  models = ClientModels(CENTERS, mixture=WEIGHTS)
  result = models.clusters()
  assert result.tolist() == [1, 0, 2, 0]  # Of equal weights, the first.
  assert result.dtype == jnp.int32
  assert models.has_clusters()
  assert models.num_clusters() == 3
  with pytest.raises(ValueError, match='no single model'):
    models.params(4)


def test_parameters_of_some_clients_are_copies_of_what_they_deploy():
  algorithm = Algorithm(None, None, None, ClientModels)  # Its state and data.
  result = algorithm.client_params(CENTERS, CHOICE, np.array([3, 0]))
  np.testing.assert_array_equal(result['a'], [[3, 4], [5, 6]])


def test_a_method_keeps_the_local_training_that_it_was_built_with():
  with pytest.raises(UserError, match='local'):
    Algorithm(None, None, None, None)._replace(local=1)
