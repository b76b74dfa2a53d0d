"""Names of runs in tables and figures."""

from typing import Any


def method_label(config: dict[str, Any]) -> str:
  """The method's name as the paper writes it, e.g. "fesem(4)"."""
  name = config.get('algorithm') or ''
  clusters = config.get('num_clusters')
  return f'{name}({clusters})' if name and clusters else name
