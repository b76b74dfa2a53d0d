"""Shows the indented paragraphs of docstrings, their equations, line by line."""

import re

import griffe

_SECTION = re.compile(r'^(Args|Attributes|Returns|Raises|Yields):$', re.M)


def fenced(docstring: str) -> str:
  """The docstring with indented paragraphs as code blocks; its sections stay."""
  section = _SECTION.search(docstring)
  end = section.start() if section else len(docstring)
  paragraphs = docstring[:end].split('\n\n')
  for i, paragraph in enumerate(paragraphs):
    lines = paragraph.strip('\n').split('\n')
    if all(line.startswith('  ') for line in lines):
      paragraphs[i] = '\n'.join(['```text', *(line[2:] for line in lines), '```'])
  return '\n\n'.join(paragraphs) + docstring[end:]


class Equations(griffe.Extension):
  """Applies `fenced` to every docstring."""

  def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
    """Called by Griffe with every module, class, function and attribute."""
    if obj.docstring:
      obj.docstring.value = fenced(obj.docstring.value)
