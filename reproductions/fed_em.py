"""The synthetic mixture of Marfoq et al., "Federated Multi-Task Learning under a
Mixture of Distributions" (FedEM), NeurIPS 2021, as their code generates it.
"""

import numpy as np

_LEAST, _MOST = 50, 1000  # Training examples of a client.
_TEST_PER_TRAINING = 2


def mixture(
  *,
  seed: int = 12345,
  clients: int = 300,
  components: int = 3,
  dimension: int = 150,
  alpha: float = 0.4,
  noise: float = 0.1,
) -> dict[str, np.ndarray]:
  """Binary labels of linear models, of which each client has a mixture of its own.

  theta_m and x are uniform in [-1, 1]^d; client i's share of each component is
  pi_i ~ Dirichlet(alpha), and an example of component m has the label
  round(sigmoid(<theta_m, x> + N(0, noise^2))). Client i has
  min(50 + exp(N(4, 2^2)), 1000) training examples.

  Their clients have 5,000 test examples each, weighed by training examples; here they
  have two test examples for each of training, which weighs them alike in less memory.

  Args:
    seed: of all draws.
    clients: tasks, M.
    components: of the mixture.
    dimension: d.
    alpha: concentration of the shares.
    noise: standard deviation.
  """
  rng = np.random.default_rng(seed)
  sizes = np.minimum(rng.lognormal(4, 2, clients).astype(int) + _LEAST, _MOST)
  shares = rng.dirichlet(np.full(components, alpha), clients)
  theta = rng.uniform(-1, 1, (components, dimension))
  every = sizes * (1 + _TEST_PER_TRAINING)
  client = np.repeat(np.arange(clients), every)
  component = np.concatenate(
    [rng.choice(components, n, p=p) for n, p in zip(every, shares, strict=True)]
  )
  x = rng.uniform(-1, 1, (len(client), dimension)).astype(np.float32)
  margin = (x * theta[component]).sum(axis=1) + rng.normal(0, noise, len(client))
  split = np.concatenate([np.arange(n) >= s for n, s in zip(every, sizes, strict=True)])
  return {
    'x': x,
    'y': (margin > 0).astype(np.int32),
    'client': client.astype(str),
    'split': split.astype(np.int32),
  }
