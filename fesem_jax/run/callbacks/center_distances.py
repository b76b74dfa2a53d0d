"""How far the local models of some clients are from all centers."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import tree
from fesem_jax.core.types import Cohort
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.callbacks.events import Round, Start
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check


class CenterDistances(Callback):
  """Adds the distances of some clients' local models to all centers to every record.

  Applies to FeSEM where it keeps the models of clients (`client_state` other than
  'streamed'). The record gets `center_distances`, name of each client -> K squared L2
  distances of all parameters of its local model, after its last training, to the
  centers after the round; `load_run(workdir).explain(client)` shows them. A round takes
  one more small program, and K numbers a client.

  Attributes:
    clients: names of the clients.
  """

  def __init__(self, clients: Sequence[str]):
    """Records the distances of some clients.

    Args:
      clients: their names.

    Raises:
      UserError: at the start of a run, on a name that is no client's, or if the method
        keeps no models of clients beside centers.
    """
    self.clients = [clients] if isinstance(clients, str) else list(clients)

  def on_start(self, start: Start) -> None:
    """Finds the clients."""
    names = np.asarray(start.train.info.names).astype(str)
    for name in self.clients:
      check(np.sum(names == name) == 1, f'center_distances: unknown client {name!r}')
    own = [int(np.flatnonzero(names == name)[0]) for name in self.clients]
    self._ids = np.asarray(start.arranged.places)[own].astype(np.int32)
    self._algorithm = start.algorithm
    models = _client_params(start.state)
    used = jax.eval_shape(start.algorithm.deployed, start.state, start.arranged.train)
    has_both = models is not None and used.shared is not None and used.own is None
    check(has_both, 'center_distances: needs fesem without client_state=streamed')

  def on_round(self, event: Round) -> None:
    """Measures the distances after the round."""
    arranged, algorithm = event.arranged, self._algorithm

    def distances(state: Any, train: Any, ids: jax.Array) -> jax.Array:
      centers = algorithm.deployed(state, train).shared
      rows = tree.rows_of(_client_params(state), Cohort(ids, everyone=False))

      def of_layer(row: jax.Array, center: jax.Array) -> jax.Array:
        apart = row[:, None] - center[None]
        return jnp.square(apart).sum(axis=range(2, apart.ndim))

      layers = jax.tree.leaves(jax.tree.map(of_layer, rows, centers))
      return jnp.stack(layers).sum(axis=0)

    args = event.state, arranged.train, self._ids
    program = arranged.compiled(('center distances', algorithm), distances, *args)
    of_clients = np.asarray(processes.on_host(program(*args)), float)
    event.record['center_distances'] = {
      name: [float(x) if np.isfinite(x) else None for x in row]
      for name, row in zip(self.clients, of_clients, strict=True)
    }


def _client_params(state: Any) -> Any:
  """The local models [M, ...] of a state, also inside those of wrappers; or None."""
  while hasattr(state, 'method'):
    state = state.method
  return getattr(state, 'client_params', None) if hasattr(state, 'centers') else None
