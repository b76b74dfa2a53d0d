"""MkDocs hook: pages that programs write, on checks and on published figures."""

import inspect
import pathlib
from typing import Any

from fesem_jax.checks import examples, rules
from reproductions import page as published
from reproductions import recipes

_ROOT = pathlib.Path(__file__).parents[1]

_TITLES = {
  rules.Data: 'Data, by `data.load` and `simulate`',
  rules.Deal: 'Clients, by `data.load`',
  rules.Local: 'Model and local training, by `simulate`',
  rules.Request: 'Before a run, by `simulate`',
  rules.Outcome: 'After a run, by `simulate`',
}
_HEAD = """# Checks

These checks look for what gives a wrong number without an error. Each finding is a
warning, once in a process, and an entry of `summary['checks']`. An id silences a check:
`--ignore_checks=FJ101` of commands, `ignore_checks=('FJ101',)` of `simulate` and
`data.load`. The names in examples are those of `fesem_jax/checks/examples.py`.
"""


def page() -> str:
  """The page of checks, in Markdown."""
  parts = [_HEAD]
  for subject, title in _TITLES.items():
    parts.append(f'## {title}\n')
    for rule in rules.RULES.values():
      if rule.subject is subject:
        says, _ = examples.answers(rule)
        parts.append(
          f'### {rule.id}: {rule.find.__name__.replace("_", " ")}\n\n'
          f'{inspect.getdoc(rule.find)}\n\n'
          f'```python\n{rule.bad}  # {rule.id} {says[0]}\n{rule.good}  # nothing\n```\n'
        )
  return '\n'.join(parts)


def on_pre_build(config: Any) -> None:
  """Called by MkDocs first: writes the page on published figures, which git ignores."""
  every = [recipes.read(name) for name in recipes.names()]
  text = published.text(every, _ROOT / 'benchmarks/results/papers')
  (_ROOT / 'docs/published_figures.md').write_text(text, encoding='utf-8')


def on_files(files: Any, config: Any) -> Any:
  """Called by MkDocs with all files: adds the page of checks."""
  from mkdocs.structure.files import File

  files.append(File.generated(config, 'checks.md', content=page()))
  return files
