"""Notebooks of `docs/notebooks` as pages of the manual, with their outputs.

The build runs each notebook in a process of its own and makes a page of its text, its
code, and what the code says and draws. The notebook itself, without outputs, is beside
the page, to be downloaded or opened in Colab. Outputs are kept in `build/notebooks`
until the notebook or the package changes.

  python docs/notebooks.py NOTEBOOK OUTPUT.json
"""

import ast
import base64
import contextlib
import hashlib
import html
import io
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

_LINK = re.compile(r'(\]\([\w/.-]+)\.ipynb\)')
_ROOT = pathlib.Path(__file__).parents[1]

# What a code cell says and draws: kind, 'text', 'html' or 'png' (base 64), and content.
Outputs = list[tuple[str, str]]


def outputs(text: str, values: dict[str, int] | None = None) -> list[Outputs]:
  """Runs a notebook; the outputs of each code cell, as Jupyter would show them.

  Args:
    text: of the file.
    values: in place of those of the cell that is tagged `parameters`.
  """
  held: dict[str, Any] = {'__name__': '__main__'}
  found = []
  for number, cell in enumerate(_cells(text)):
    if values and 'parameters' in cell['metadata'].get('tags', []):
      held |= {
        name: values[name] for name in re.findall(r'^(\w+) = ', _source(cell), re.M)
      }
      found.append([])
      continue
    said, made = io.StringIO(), []
    with contextlib.redirect_stdout(said):
      value = _run(_source(cell), f'code cell {number}', held)
    if said.getvalue():
      made.append(('text', said.getvalue()))
    if value is not None:
      shown = getattr(value, '_repr_html_', None)
      made.append(('html', shown()) if shown else ('text', repr(value)))
    found.append(made + [('png', picture) for picture in _pictures()])
  return found


def _cells(text: str) -> list[dict[str, Any]]:
  return [cell for cell in json.loads(text)['cells'] if cell['cell_type'] == 'code']


def _source(cell: dict[str, Any]) -> str:
  return ''.join(cell['source'])


def _run(source: str, name: str, held: dict[str, Any]) -> Any:
  """Runs a cell; the value of its last line unless that ends with a semicolon."""
  body, last = ast.parse(source), None
  if isinstance(body.body[-1], ast.Expr) and not source.rstrip().endswith(';'):
    last = ast.Expression(body.body.pop().value)
  exec(compile(body, name, 'exec'), held)
  return None if last is None else eval(compile(last, name, 'eval'), held)


def _pictures() -> list[str]:
  """The figures that are open, which it closes, as PNG in base 64."""
  if 'matplotlib.pyplot' not in sys.modules:
    return []
  from matplotlib import pyplot as plt

  found = []
  for number in plt.get_fignums():
    file = io.BytesIO()
    plt.figure(number).savefig(file, format='png', bbox_inches='tight', dpi=120)
    found.append(base64.b64encode(file.getvalue()).decode())
  plt.close('all')
  return found


def as_markdown(text: str, name: str, shown: list[Outputs]) -> str:
  """A notebook as the Markdown of a page, links to notebooks as links to pages.

  Args:
    text: of the file.
    name: of the file, which the page links to.
    shown: the outputs of each code cell.
  """
  parts, left = [], iter(shown)
  for cell in json.loads(text)['cells']:
    if cell['cell_type'] != 'code':
      parts.append(_LINK.sub(r'\1.md)', _source(cell)))
      continue
    parts.append(f'```python\n{_source(cell)}\n```')
    parts += [_output(kind, content) for kind, content in next(left)]
  title, *rest = parts[0].split('\n', 1)
  download = f'\n[Download the notebook](./{name}), to run it or open it in Colab.\n'
  parts[0] = '\n'.join([title, download, *rest])
  return '\n\n'.join(parts) + '\n'


def _output(kind: str, content: str) -> str:
  """An output as a block of HTML, without the empty lines that would end it."""
  if kind == 'png':
    content = f'<img alt="Figure of this cell" src="data:image/png;base64,{content}">'
  elif kind == 'text':
    content = f'<pre>{html.escape(content.rstrip())}</pre>'
  return '<div class="output">' + re.sub(r'\n\s*\n', '\n&#8203;\n', content) + '</div>'


def _kept(path: pathlib.Path) -> list[Outputs]:
  """The outputs of a notebook, run unless they are kept."""
  digest = hashlib.sha256(path.read_bytes())
  for source in sorted([pathlib.Path(__file__), *_ROOT.glob('fesem_jax/**/*.py')]):
    digest.update(source.read_bytes())
  file = _ROOT / 'build/notebooks' / f'{path.stem}-{digest.hexdigest()[:16]}.json'
  if not file.is_file():
    file.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, __file__, path, file], check=True, cwd=_ROOT)
  return json.loads(file.read_text())


def on_files(files: Any, config: Any) -> Any:
  """Called by MkDocs with all files: adds a page for each notebook."""
  from mkdocs.structure.files import File

  for file in list(files):
    if file.src_uri.endswith('.ipynb'):
      page = file.src_uri.removesuffix('.ipynb') + '.md'
      name = file.src_uri.rpartition('/')[2]
      shown = _kept(pathlib.Path(file.abs_src_path))
      made = as_markdown(file.content_string, name, shown)
      files.append(File.generated(config, page, content=made))
  return files


if __name__ == '__main__':
  import matplotlib

  matplotlib.use('Agg')
  sys.path.insert(0, str(_ROOT))
  made = outputs(pathlib.Path(sys.argv[1]).read_text())
  pathlib.Path(sys.argv[2]).write_text(json.dumps(made))
