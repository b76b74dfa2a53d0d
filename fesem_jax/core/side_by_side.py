"""How many times the models of a round train as fast side by side as in turn."""

import jax

from fesem_jax.core.local_training import LocalTraining

# Numbers of models that train side by side on a CPU. More of them leave its cache, and
# then runs side by side take more work than one after the other.
_MOST_NUMBERS = 2**18


def most(local: LocalTraining, num_clients: int) -> int:
  """How many trainings of so many clients are faster side by side, if on a CPU."""
  if local.mesh.devices.flat[0].platform != 'cpu':
    return 2**10
  # Clients that convolve train one by one.
  return 1 if convolves(local) else _MOST_NUMBERS // numbers(local, num_clients)


def numbers(local: LocalTraining, num_clients: int) -> int:
  """Parameters of the models that train side by side on a device in one training."""
  clients = min(local.clients_per_chunk, -(-num_clients // local.mesh.size))
  return max(1, clients * parameters(local))


def convolves(local: LocalTraining) -> bool:
  """Tells if a model has parameters of more than two axes, as of convolutions."""
  return any(x.ndim > 2 for x in _layers(local))


def parameters(local: LocalTraining) -> int:
  """The number of parameters of a model."""
  return sum(x.size for x in _layers(local))


def _layers(local: LocalTraining) -> list[jax.ShapeDtypeStruct]:
  return jax.tree.leaves(jax.eval_shape(local.model.init, jax.random.key(0)))
