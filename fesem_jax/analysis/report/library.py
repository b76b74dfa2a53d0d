"""The JavaScript that draws the charts of a page: Vega, Vega-Lite and Vega-Embed."""

from importlib import metadata

from fesem_jax.utils import progress_lines, user_cache
from fesem_jax.utils.atomic_files import write_atomically


def bundle() -> str:
  """The library as one script.

  To put it together takes seconds; each user of a machine does it once for each version
  of `vl_convert`.
  """
  import vl_convert  # An optional dependency.

  version = metadata.version('vl-convert-python')
  path = user_cache.folder() / 'report' / f'vega_{version}.js'
  user_cache.make_private(path.parent)
  if not path.exists():
    with progress_lines.waiting_for('building the figure library'):
      text = vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')
    write_atomically(path, text.replace('</script', '<\\/script'))
  return path.read_text(encoding='utf-8')
