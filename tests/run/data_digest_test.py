"""The digest of examples that a resumed run compares."""

import dataclasses

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.configuration import digest_of_data


def test_a_digest_of_parts_is_that_of_the_whole(monkeypatch):
  rng, sizes = np.random.default_rng(0), [7, 9, 4, 12, 8]
  x = rng.integers(0, 256, (40, 3, 2)).astype(np.uint8)
  data = FederatedData.from_arrays(x, rng.integers(0, 3, 40), sizes, num_classes=3)
  here = np.array([True, False, True, True, False])
  parts = []
  for clients in (here, ~here):
    monkeypatch.setattr(
      'fesem_jax.utils.processes.total', lambda part: parts.append(part) or part
    )
    digest_of_data(data, here=[clients])
  assert ((parts[0] == 0).all(axis=1) == ~here).all()
  monkeypatch.setattr('fesem_jax.utils.processes.total', lambda part: sum(parts))
  assert digest_of_data(data, here=[here]) == digest_of_data(data)
  x = x.copy()
  x[-1] += 1  # Of the last client.
  assert digest_of_data(dataclasses.replace(data, x=x)) != digest_of_data(data)
