"""References of methods that begin and merge clusters, in float64 and by lists."""

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform


def fed_drift_step(losses, own, before, last_used, weights, delta):
  """A time step of FedDrift.

  Args:
    losses: [M, K] of all models.
    own: [M] model of each client.
    before: [M] loss of the step before.
    last_used: [K] last time step of each model, -1 of those that are not in use.
    weights: [M].
    delta: threshold.

  Returns:
    Model that each client trains, its least loss, model -> the one that it starts as,
    clusters of models, and their weights.
  """
  num_clients, count = losses.shape
  in_use = [k for k in range(count) if last_used[k] >= 0]
  best = np.array([min(in_use, key=lambda k: losses[i, k]) for i in range(num_clients)])
  least = losses[np.arange(num_clients), best]
  drifted = least > before + delta
  free = sorted(set(range(count)) - set(best.tolist()), key=lambda k: (last_used[k], k))
  new = dict(zip(np.flatnonzero(drifted), free, strict=False))
  kept = [k for k in in_use if k not in new.values()]
  members = {
    k: [
      i
      for i in range(num_clients)
      if (best[i] == k and not drifted[i])
      or (own[i] == k and losses[i, k] <= before[i] + delta)
    ]
    for k in kept
  }
  seen = [k for k in kept if members[k]]

  def on(j, k):
    return np.average(losses[members[k], j], weights=weights[members[k]])

  def apart(j, k):
    return max(on(j, k) - on(j, j), on(k, j) - on(k, k), 0) * (j != k)

  label = np.zeros(len(seen), int)
  if len(seen) > 1:
    table = np.array([[apart(j, k) for k in seen] for j in seen])
    tree = hierarchy.linkage(squareform(table), 'complete')
    label = hierarchy.fcluster(tree, delta, 'distance')
  clusters = [
    [k for k, c in zip(seen, label, strict=True) if c == g] for g in set(label)
  ]
  into = {k: min(cluster) for cluster in clusters for k in cluster}
  after = np.array([new.get(i, into.get(k, k)) for i, k in enumerate(best)])
  shares = {k: weights[members[k]].sum() for k in seen}
  return after, least, {k: best[i] for i, k in new.items()}, clusters, shares


def stocfl_merged(clusters, gradients, tau):
  """Lists of clients: while two means are similar, all that hang together merge."""

  def cosine(a, b):
    u, v = gradients[a].mean(axis=0), gradients[b].mean(axis=0)
    return u @ v / np.linalg.norm(u) / np.linalg.norm(v)

  clusters = [list(c) for c in clusters]
  while True:
    similar = [
      (i, j)
      for j in range(len(clusters))
      for i in range(j)
      if cosine(clusters[i], clusters[j]) >= tau
    ]
    if not similar:
      return clusters
    own = np.arange(len(clusters))
    for i, j in similar:
      own[own == own[j]] = own[i]
    clusters = [
      [i for c, o in zip(clusters, own, strict=True) if o == k for i in c]
      for k in dict.fromkeys(own)
    ]
