"""Transfers, gathers and products, read from the text of a compiled program."""

import re

_TO_HOST = re.compile(
  r' (infeed|outfeed|send|recv)\(|custom_call_target="[^"]*(?:callback|host)[^"]*"'
)
_ARRAY = re.compile(r'(%[\w.-]+) = \(?\w+\[([\d,]*)\]')
_GATHER = re.compile(r' gather\((%[\w.-]+)')
_PRODUCT = re.compile(r' (?:convolution|dot)\(.*')


def calls_to_host(text: str) -> list[str]:
  """Instructions in the text of a compiled program that wait for the host."""
  return sorted({match.group().strip() for match in _TO_HOST.finditer(text)})


def gathers_of_models(
  text: str, layers: set[tuple[int, ...]], more_than: int
) -> list[str]:
  """Stacks of models that a compiled program gathers rows of.

  Args:
    text: of the program.
    layers: shapes of the layers to look for, of one model.
    more_than: models, such as the centers, that a stack may have.

  Returns:
    Shapes of the stacked layers, as '100,784,200'.
  """
  names = dict(_ARRAY.findall(text))
  shapes = {names.get(name, '') for name in _GATHER.findall(text)}
  dims = {shape: tuple(map(int, filter(None, shape.split(',')))) for shape in shapes}
  return sorted(s for s, d in dims.items() if d[1:] in layers and d[0] > more_than)


def products_by_precision(text: str) -> dict[str, int]:
  """Precision of the factors -> products on the matrix unit of a compiled program."""
  counts: dict[str, int] = {}
  for product in _PRODUCT.findall(text):
    match = re.search(r'operand_precision=\{(\w+)', product)
    kind = match[1] if match else 'default'
    counts[kind] = counts.get(kind, 0) + 1
  return counts
