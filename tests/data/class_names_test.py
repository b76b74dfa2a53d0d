"""Classes have names in figures where their data set has."""

import numpy as np
import pytest

from fesem_jax.data import text
from fesem_jax.data.class_names import class_names, most_frequent


@pytest.mark.parametrize(
  ('dataset', 'number', 'place', 'name'),
  [('cifar10', 10, 6, 'frog'), ('femnist', 62, 37, 'b')],
)
def test_names_of_classes(dataset, number, place, name):
  names = class_names(dataset, number)
  assert names[place] == name
  assert len(set(names)) == number


def test_characters_have_the_names_of_their_tokens():
  names = class_names('shakespeare', len(text.VOCABULARY))
  assert names[text.tokens('q')[0]] == 'q'
  assert names[text.tokens('\n')[0]] == 'line break'
  assert names[text.tokens(' ')[0]] == 'space'
  assert names[text.tokens('~')[0]] == 'unknown'


@pytest.mark.parametrize('dataset', ['cifar10', 'digits'])
def test_classes_without_names_have_numbers(dataset):
  assert class_names(dataset, 3) == ['0', '1', '2']


def test_classes_beyond_the_most_frequent_are_summed():
  counts = np.array([[3, 0, 1, 2], [1, 1, 0, 5]])
  kept, names = most_frequent(counts, 'abcd', 2)
  np.testing.assert_array_equal(kept, [[3, 2, 1], [1, 5, 1]])
  assert names == ['a', 'd', '2 others']
  whole, names = most_frequent(counts, 'abcd', 4)
  np.testing.assert_array_equal(whole, counts)
  assert names == ['a', 'b', 'c', 'd']


def test_names_of_the_data_come_first():
  assert class_names('cifar10', 2, np.array(['cat', 'dog'])) == ['cat', 'dog']
  assert class_names('cifar10', 3, ['cat', 'dog']) == ['0', '1', '2']
