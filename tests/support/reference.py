"""Float64 NumPy references, written from the equations, not from our code.

A model is a list of (kernel [I, O], bias [O]) pairs: an MLP with ReLU.
"""

import itertools

import numpy as np


def from_params(params, row=None):
  """Our MLP's params (or one row of a stack) as a reference model."""
  names = [*sorted(n for n in params if n.startswith('dense')), 'logits']

  def pick(x):
    x = np.asarray(x)  # On the host: on a device each slice is an operation of its own.
    return np.asarray(x if row is None else x[row], np.float64)

  return [(pick(params[n]['kernel']), pick(params[n]['bias'])) for n in names]


def flat(model):
  """All parameters of a reference model as one vector."""
  return np.concatenate([part.ravel() for layer in model for part in layer])


def loss_and_gradient(model, x, y, factors=1.0):
  """Mean cross entropy of a batch and its gradient, by backpropagation.

  Args:
    model: see above.
    x: [B, ...].
    y: [B].
    factors: [B] of the losses, whose mean is still over B.
  """
  hidden = [x.reshape(len(x), -1).astype(np.float64)]
  for i, (kernel, bias) in enumerate(model):
    z = hidden[-1] @ kernel + bias
    hidden.append(z if i == len(model) - 1 else np.maximum(z, 0))
  logits = hidden[-1] - hidden[-1].max(axis=1, keepdims=True)
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  factors = np.broadcast_to(factors, len(y))
  loss = -(factors * np.log(p[np.arange(len(y)), y])).mean()
  delta = p.copy()
  delta[np.arange(len(y)), y] -= 1
  delta *= factors[:, None] / len(y)
  gradient = []
  for i in reversed(range(len(model))):
    gradient.insert(0, (hidden[i].T @ delta, delta.sum(axis=0)))
    delta = (delta @ model[i][0].T) * (hidden[i] > 0)
  return loss, gradient


def losses(models, data, ids):
  """[S, K] the mean loss of each model on all examples of each client of `ids`."""
  return np.array(
    [[loss_and_gradient(model, *data.client(i))[0] for model in models] for i in ids]
  )


def example_losses(model, x, y):
  """[n] cross entropy of each example."""
  return np.array(
    [loss_and_gradient(model, x[s : s + 1], y[s : s + 1])[0] for s in range(len(y))]
  )


def local_sgd(model, batches, rate, prox=0.0, correction=None):
  """SGD on CE + prox * |w - w_start|^2 + <correction, w> over given batches.

  A batch is x and y, and factors of the losses where they are not 1.
  """
  start = model
  losses, counts = [], []
  for x, y, *factors in batches:
    loss, gradient = loss_and_gradient(model, x, y, *factors)
    losses.append(loss)
    counts.append(len(y))
    new = []
    for i, (layer, g, s) in enumerate(zip(model, gradient, start, strict=True)):
      extra = (0, 0) if correction is None else correction[i]
      new.append(
        tuple(
          w - rate * (dw + 2 * prox * (w - w0) + e)
          for w, dw, w0, e in zip(layer, g, s, extra, strict=True)
        )
      )
    model = new
  return model, np.average(losses, weights=counts)


def paper_penalty(prox_lambda, sizes):
  """[M] lambda / (m alpha_i): Eq. 7 divided by client i's share of all examples."""
  alpha = np.asarray(sizes) / np.sum(sizes)
  return prox_lambda / (len(alpha) * alpha)


def squared_distances(points, centers):
  """[S, K] |w_i - c_k|^2 of rows [S, P] and [K, P]."""
  return ((points[:, None] - centers[None]) ** 2).sum(axis=-1)


def nearest(points, centers):
  """[S] argmin_k |w_i - c_k|^2."""
  return squared_distances(points, centers).argmin(axis=1)


def means(points, assignment, weights, centers):
  """Weighted mean of each cluster; empty clusters keep their centers."""
  new = np.array(centers, np.float64)
  for k in range(len(centers)):
    mine = (assignment == k) & (weights > 0)
    if mine.any():
      new[k] = np.average(points[mine], axis=0, weights=weights[mine])
  return new


def objective(points, centers, assignment, weights=None):
  """Eq. 6."""
  distances = ((points - centers[assignment]) ** 2).sum(axis=-1)
  return np.average(distances, weights=weights)


def lloyd(points, centers, iterations=100):
  """K-means from given centers until nothing moves."""
  assignment = nearest(points, centers)
  for _ in range(iterations):
    centers = means(points, assignment, np.ones(len(points)), centers)
    new = nearest(points, centers)
    if (new == assignment).all():
      break
    assignment = new
  return assignment, centers


def split(updates, assignment, count, eps1, gamma, min_size):
  """FedCluster's check: each cluster of updates [n, P] parted in two at most.

  Complete linkage, merged pair by pair: the two groups whose least similar pair
  of clients is the most similar.
  """
  assignment = assignment.copy()
  for k in range(count):
    ids = np.flatnonzero(assignment == k)
    u = updates[ids]
    norms = np.linalg.norm(u, axis=1)
    if len(ids) <= min_size or np.linalg.norm(u.mean(0)) >= eps1 * norms.max():
      continue
    cosine = u @ u.T / np.outer(norms, norms)
    groups = [[i] for i in range(len(ids))]

    def worst(a, b, cosine=cosine):
      return min(cosine[i, j] for i in a for j in b)

    while len(groups) > 2:
      pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
      a, b = max(pairs, key=lambda p: worst(groups[p[0]], groups[p[1]]))
      groups[b] += groups.pop(a)
    across = max(cosine[i, j] for i in groups[0] for j in groups[1])
    if np.sqrt((1 - across) / 2) > gamma:
      first = groups[0] if 0 in groups[0] else groups[1]
      assignment[[ids[i] for i in range(len(ids)) if i not in first]] = count
      count += 1
  return assignment, count


def trimmed(points, assignment, centers, trim):
  """[S] bool: all but the floor(trim * n) farthest clients of each cluster of n."""
  distance = ((points - centers[assignment]) ** 2).sum(axis=1)
  kept = np.ones(len(points), bool)
  for k in range(len(centers)):
    mine = np.flatnonzero(assignment == k)
    dropped = int(trim * len(mine) + 1e-9)
    kept[mine[np.argsort(-distance[mine])[:dropped]]] = False
  return kept


def trimmed_kmeans(points, seeds, trim, weights, iterations=100):
  """Trimmed k-means from given centers: assignment, centers, Eq. 6 of who is kept."""
  centers = np.array(seeds, np.float64)
  assignment = nearest(points, centers)
  for _ in range(iterations):
    kept = weights * trimmed(points, assignment, centers, trim)
    centers = means(points, assignment, kept, centers)
    assignment = nearest(points, centers)
  kept = weights * trimmed(points, assignment, centers, trim)
  return assignment, centers, objective(points, centers, assignment, kept)


def best_kmeans(points, num_clusters, trim=0.0, weights=None):
  """The best of trimmed k-means from all choices of seeds among the clients."""
  weights = np.ones(len(points)) if weights is None else weights
  result = [
    trimmed_kmeans(points, points[list(seeds)], trim, weights)
    for seeds in itertools.combinations(range(len(points)), num_clusters)
  ]
  return min(result, key=lambda f: f[2])


def vectors(stack):
  """[K, P] float64 of a stack of models, in the order of `flat`."""
  count = len(stack['logits']['bias'])
  return np.stack([flat(from_params(stack, k)) for k in range(count)])
