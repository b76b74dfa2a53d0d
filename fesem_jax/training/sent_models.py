"""The models that clients send in place of those that they trained."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core import parameter_names, tree
from fesem_jax.core.federated_data import Attack, FederatedData
from fesem_jax.core.sending import Sends, sent_by_client
from fesem_jax.core.types import Params


def are_changed(data: FederatedData, sends: Sends | None) -> bool:
  """True if some clients send other models than those that they trained."""
  lies = data.attack is not None and data.attack.poisons_models
  return lies or (sends is not None and sends.transform is not None)


def as_sent(
  data: FederatedData,
  client: jax.Array,
  key: jax.Array,
  received: Params,
  trained: Params,
  layers: Sequence[str] | None = None,
  sends: Sends | None = None,
) -> Params:
  """The model that a client sends: a bad client's lie, then changed by `sends`."""
  part, changed = layers is not None or _lacks_some(received), trained
  if part:
    if layers is not None:
      received = parameter_names.split(received, layers)[1]
    received = flatten_dict(parameter_names.without_none(received))
    changed = {path: x for path, x in flatten_dict(trained).items() if path in received}
  if not jax.tree.leaves(received):
    return trained
  if data.attack is not None and data.attack.poisons_models:
    changed = _lie(data.attack, client, key, received, changed)
  if sends is not None:
    changed = sent_by_client(sends, key, received, changed)
  return tree.merge(unflatten_dict(changed), trained) if part else changed


def _lie(
  attack: Attack, client: jax.Array, key: jax.Array, received: Params, changed: Params
) -> Params:
  """The lie of a bad client about the layers that it received; others do not lie."""
  bad = jnp.asarray(attack.bad).at[client].get(mode='fill', fill_value=False)
  lie = changed
  for kind in attack.kinds:
    if hasattr(kind, 'send'):
      lie = kind.send(received, lie, key)
  # A lie beyond float32 would stop the run as a client that failed does not.
  finite = tree.all_finite(tree.expand(lie))[0]
  return jax.tree.map(lambda a, b: jnp.where(bad & finite, a, b), lie, changed)


def _lacks_some(received: Params) -> bool:
  leaves = jax.tree.leaves(received, is_leaf=lambda x: x is None)
  return any(x is None for x in leaves)
