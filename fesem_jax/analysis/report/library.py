"""The JavaScript that draws the figures of a page: Vega, Vega-Lite and Vega-Embed."""

import gzip
from importlib import metadata

from fesem_jax.utils import progress_lines, user_cache
from fesem_jax.utils.atomic_files import replacing

_GLOBALS = 'window.vegaEmbed = vegaEmbed;'


def compressed() -> bytes:
  """The library, gzipped.

  To put it together takes seconds; each user of a machine does it once for each version
  of `vl_convert`.
  """
  import vl_convert  # An optional dependency.

  version = metadata.version('vl-convert-python')
  path = user_cache.folder() / 'report' / f'vega_{version}.js.gz'
  user_cache.make_private(path.parent)
  if path.exists():
    return path.read_bytes()
  with progress_lines.waiting_for('building the figure library'):
    text = vl_convert.javascript_bundle(_GLOBALS)
  content = gzip.compress(text.encode(), 9, mtime=0)
  with replacing(path) as file:
    file.write(content)
  return content
