"""A hand-made run that the tests of figures draw."""

import json

import numpy as np


def write_run(tmp_path):
  """Writes a run of 30 clients in three clusters."""
  rng = np.random.default_rng(0)
  assignment = np.arange(30) % 3
  (tmp_path / 'config.json').write_text(
    json.dumps({'algorithm': 'fesem', 'num_clusters': 3, 'seed': 0})
  )

  def scores(r):
    return {'micro_accuracy': 0.5 + r / 20}

  with (tmp_path / 'metrics.jsonl').open('w') as f:
    for r in range(6):
      record = {
          'round': r, 'train_loss': 1 / (r + 1), 'cluster_sizes': [10, 10, 10],
          'moved': 5 - r, 'objective': 2.0 - r / 5, 'ari': r / 5, 'nmi': r / 5,
          'ami': r / 5 - 0.2,
          'deployed': scores(r), 'finetuned': scores(r), 'seconds': 0.1,
      }  # fmt: skip
      f.write(json.dumps(record) + '\n')
  np.savez(
    tmp_path / 'clients.npz', names=np.array([f'c{i}' for i in range(30)]),
    truth=assignment, assignment=assignment, sampled=np.arange(30),
    coordinates=rng.normal(size=(30, 4)) + 5 * assignment[:, None],
    variance=np.array([0.6, 0.2, 0.1, 0.1]), confusion=rng.integers(0, 4, (3, 5, 5)),
    sheet_images=rng.integers(0, 16, (3, 6, 12, 8, 8)).astype(np.uint8),
    sheet_clients=np.arange(18).reshape(3, 6),
  )  # fmt: skip
  return tmp_path
