"""Partitions deal the examples that version 0.4.0 dealt, bit for bit."""

import hashlib

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fesem_jax import data, partitions

LISTS = {
  'rows 0': [list(range(i, 900, 7)) for i in range(7)],
  'rows 1': [list(range(i, 1797, 7)) for i in range(7)],
  'rows 2': {
    'a': {'train': [1, 5], 'test': [1700]}, 'b': {'train': [7], 'test': [1600, 1601]},
  },
}  # fmt: skip

# Partition -> digests of both splits, of digits without and with test examples of their
# own. Each is of two runs of other seeds, numbers of clients and of examples. Only
# `cluster` with test examples of its own deals others than version 0.4.0.
DIGESTS = {
  'iid': 'cdde1179df4c d61158d10306',
  'unequal(alpha=0.3)': '56910a8d6b59 928317eb2590',
  'lognormal(sigma=0.5)': 'f463103829ca 869246dd852a',
  'power_law(per_client=3)': '849ae116d1ae f36d0f0687bf',
  'dirichlet(alpha=0.1)': '08b4f1c72d11 7c9ae1b842ca',
  'dirichlet(min_examples=5)': 'a6815d881df5 e1c0279e002d',
  'dirichlet_labels(alpha=0.2)': '12eb5ffbc1d5 5ccf8dbf4572',
  'labels(per_client=3)': '20bafa293d52 d42eb16931a9',
  'shards(per_client=3)': 'f2f9ffb12fee 21f687636bb2',
  'noisy(variance=0.2)': '7ea3f4d5d21b 2a6858a56e8f',
  'noisy(variance=0.2)+dirichlet(alpha=0.3)': '09d7e650c91a d4c402eb5540',
  'rotated': '7ba49b5f0146 f1f587f55b64',
  'rotated(groups=[0,15,90])': 'a9bafa0f1485 45680be896ba',
  'rotated(groups=[0,30],sampling=nearest,disjoint=True)':
    '81dcf097b4f6 9143639e5309',
  'rotated+dirichlet(alpha=0.1)': '8afc3662246c c1c6b7295590',
  'rotated+shards(per_client=3)': '952c741f386d c9274a1c40dd',
  'noisy(variance=0.2)+rotated(groups=2)': '39c08c62b90e 1ff1fa0e49e8',
  'label_permuted(groups=3)': 'a97f436e40dc 58249bb9090e',
  'label_permuted(groups=3)+labels': 'bd0887046fdc 0044df909b16',
  'label_swapped(groups=3)': '2a315b67e746 78673b3e6a90',
  'label_swapped(groups=[(1,7),(3,5)],disjoint=True)':
    '4a83d4d4868b e1d0a19cb343',
  'corrupted': '497ab17c953b 54f080ebfe19',
  'corrupted(groups=[contrast,shot_noise],strength=5)+unequal':
    'a4faffaaf455 709ee9fb8bd7',
  'rows 0': 'a9d8937a7d7d 29afaf496638',
  'rows 1': 'ed65979f2100 6052895d2575',
  'rows 2': '0edca8653c14 33931c9f367a',
  'natural': '9575c44e79fa f831aec4d019',
  'natural(min_examples=49)': 'c133ff406e33 a68cd6c83c88',
  'cluster': '4373769355c1 f9d7c1b109f0',
  'cluster+dirichlet(alpha=0.3)': 'bdef0d941c08 5978d3536a67',
}  # fmt: skip


def pool(apart, natural):
  """Digits, every fifth for testing if `apart`; clients and clusters if `natural`."""
  digits = load_digits()
  rows = np.arange(len(digits.target))
  order = np.argsort(rows % 5 == 4, kind='stable') if apart else rows
  columns = {'split': (rows % 5 == 4).astype(int)} if apart else {}
  if natural:
    columns |= {'client': rows % 37, 'cluster': rows % 37 % 3}
  columns = {name: column[order] for name, column in columns.items()}
  x, y = digits.images[order].astype(np.uint8), digits.target[order]
  return data.from_arrays(x, y, scale=1 / 16, **columns)


def digest(splits):
  """SHA-256 of features, targets, offsets, names and true clusters."""
  sha = hashlib.sha256()
  for split in splits:
    for array in (split.x, split.y, split.offsets):
      rows = np.ascontiguousarray(array)
      sha.update(str((rows.dtype, rows.shape)).encode() + rows.tobytes())
    sha.update('|'.join(map(str, split.info.names)).encode())
    if (clusters := split.info.clusters) is not None:
      groups = np.unique(clusters, return_inverse=True)[1]
      sha.update(groups.astype(np.int64).tobytes())
  return sha.hexdigest()


@pytest.mark.parametrize('name', DIGESTS)
def test_examples_are_those_of_earlier_versions(name):
  natural = name.startswith(('natural', 'cluster'))
  counts = (0, 9) if name.startswith('natural') else (9, 20) if natural else (8, 21)
  runs = [(0, counts[0], 0), (1, counts[1], 20)]
  partition = name
  if name in LISTS:
    partition, runs = partitions.Rows(LISTS[name]), [(0, 0, 0), (1, 0, 0)]
  for apart, expected in enumerate(DIGESTS[name].split()):
    examples, sha = pool(apart, natural), hashlib.sha256()
    for seed, num_clients, examples_per_client in runs:
      splits = data.federate(
        examples, partition, num_clients=num_clients, seed=seed,
        examples_per_client=examples_per_client,
      )  # fmt: skip
      sha.update(digest(splits).encode())
    assert sha.hexdigest()[:12] == expected, (apart, sha.hexdigest()[:12])
