"""Writes the page on published figures from recipes and the ledger."""

import pathlib
from collections.abc import Sequence

from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.text_tables import markdown

from . import ledger, pictures, recipes
from .recipes import MEASURES, Cell, Recipe

_HEAD = ('cell', 'published', 'here', 'difference', '95 %', 'verdict')
_INTRODUCTION = """# Published figures

Published results and their reproductions. `fesem-reproduce --page` writes this page
from recipes (`reproductions/papers/*.toml`) and a ledger of finished runs
(`benchmarks/results/papers/`) with commands, versions, seeds and curves.

```
fesem-reproduce --list                   # recipes, processor hours
fesem-reproduce --list --paper=p_fed_me  # the cells of one paper
fesem-reproduce --paper=p_fed_me         # all of its cells; resumes
fesem-reproduce --paper=cfl_gp --cells=clients_64
fesem-reproduce --page                   # this page
```

`--data_dir` or the environment variable `FESEM_DATA_DIR` names the folder of the data.
`make reproduce PAPER=p_fed_me` runs the cells of a paper that the ledger lacks, and
writes this page. `--rerun` (`RERUN=1`) runs all cells again and replaces their entries.

Each cell shows the mean and the sample standard deviation over its seeds. The column
*95 %* has half the width of Welch's 95 % interval of the difference. With one seed
here, the published deviation stands for ours, with Student's quantile of the published
seeds. A difference inside the interval is *not detected at this precision*; outside of
it, the results are *different*. Without a published deviation and number of seeds,
there is no verdict. The figure of a table has its values with their 95 % intervals
(Student). Cells that try several learning rates, and cells that show the best round,
choose them by their own metric on test examples, so their values are optimistic."""
_ADDING = """## Adding a paper

A recipe is a file `NAME.toml`, which `fesem-reproduce --paper=NAME.toml` runs. Fields
outside of cells apply to all cells:

```toml
title = "A method on rotated digits"
reference = "Authors, Title, Venue, Table 1"
setting = "80 clients, four rotations; MLP 64-64-10; 40 rounds; last round."
facts = "The authors' code."
flags = ["--dataset=digits", "--partition=rotated", "--num_clients=80", "--rounds=40"]
[[cells]]
name = "fed_avg"
row = "FedAvg"
flags = ["--algorithm=fed_avg"]
published = 90.0
```

A cell may have these fields too:

| field | value |
|---|---|
| `deviation`, `published_seeds` | published standard deviation and number of seeds |
| `rounding` | half width of an "about" value |
| `measure` | one of `recipes.MEASURES`; `rounds` are those to the `--target` |
| `report` | the `last`, `best` or `first` evaluation |
| `seeds` | number of seeds; `{seed}` in flags is the seed |
| `averaged` | whether the published figure is the mean over these seeds |
| `rates` | learning rates; the best one counts, by the metric on test examples |
| `hours` | expected processor hours |
| `comparable` | why the cell cannot be compared |
| `why` | known reasons for a difference |
| `runs_of` | another cell whose runs this cell reads |

For data that a paper generates, `--dataset` names a function in `reproductions`."""


def published(cell: Cell) -> str:
  """The published value of a cell."""
  if cell.published is None:
    return 'a curve'
  digits = MEASURES[cell.measure][0]
  about = 'about ' if cell.rounding else ''
  of_seeds = '' if cell.deviation is None else f' ± {cell.deviation:.{digits}f}'
  return f'{about}{cell.published:.{digits}f}{of_seeds}'


def here(cell: Cell, entry: ledger.Entry | None) -> str:
  """The reproduced value of a cell."""
  if entry is None:
    return f'not run ({cell.hours:g} h)' if cell.hours else 'not run'
  mean = ledger.mean(entry['values'])
  if mean is None:
    return 'not reached'
  digits, _ = MEASURES[cell.measure]
  if len(entry['values']) == 1 or cell.averaged:
    return f'{mean:.{digits}f}'
  import numpy as np

  return f'{mean:.{digits}f} ± {np.std(entry["values"], ddof=1):.{digits}f}'


def difference(cell: Cell, entry: ledger.Entry | None) -> str:
  """Here minus published; of rounds, their ratio."""
  mean = None if entry is None else ledger.mean(entry['values'])
  if mean is None or cell.published is None:
    return ''
  if cell.measure in ('rounds', 'seconds'):
    return f'x {mean / cell.published:.2f}'
  digits = MEASURES[cell.measure][0]
  return f'{mean - cell.published:+.{digits}f}'


def half_width(cell: Cell, entry: ledger.Entry | None) -> str:
  """Half of the interval behind a verdict; empty where there is no verdict."""
  if entry is None or ledger.verdict(cell, entry) not in ledger.VERDICTS:
    return ''
  half = ledger.half_interval(cell, entry['values'])
  return f'± {half:.{MEASURES[cell.measure][0]}f}'


def in_words(cell: Cell, entry: ledger.Entry | None) -> str:
  """A cell in one line of text."""
  verdict = ledger.verdict(cell, entry)
  half = half_width(cell, entry)
  verdict += f' (95 % interval: {half})' if half else ''
  return f'published {published(cell)}, here {here(cell, entry)}: {verdict}'


def write(every: Sequence[Recipe], kept: pathlib.Path, file: pathlib.Path) -> str:
  """Writes the page and its figures; a line that names it.

  `every` are all recipes, `kept` is the folder of the ledger. Figures go to figures/
  beside `file`, the page.
  """
  file.parent.mkdir(parents=True, exist_ok=True)
  drawn = (_draw(recipe, kept, file.parent / 'figures') for recipe in every)
  write_atomically(file, text(every, kept, set().union(*drawn)))
  return f'Page: {file}'


def text(
  every: Sequence[Recipe], kept: pathlib.Path, figures: set[str] | None = None
) -> str:
  """The page as Markdown; `every` are all recipes, `kept` is the folder of the ledger.

  `figures` are the names of pictures that there are; None takes all that can be drawn.
  """
  parts = [_INTRODUCTION, _overview(every, kept)]
  for recipe in every:
    drawn = pictures.of(recipe, kept)
    there = [name for name in drawn if figures is None or name in figures]
    parts.append(_section(recipe, kept, there))
  findings = (recipes.FOLDER / 'findings.md').read_text(encoding='utf-8').strip()
  return '\n\n'.join([*parts, findings, _ADDING]) + '\n'


def _overview(every: Sequence[Recipe], kept: pathlib.Path) -> str:
  rows, totals = [], [0, 0, 0, 0, 0, 0]
  hours = 0.0
  for recipe in every:
    entries = {c.name: ledger.read(kept, recipe.name, c.name) for c in recipe.cells}
    verdicts = [ledger.verdict(c, entries[c.name]) for c in recipe.cells]
    counts = [
      sum(c.published is not None for c in recipe.cells),
      sum(e is not None for e in entries.values()),
      *map(verdicts.count, (*ledger.VERDICTS, 'not comparable')),
      sum(map(verdicts.count, ledger.NO_VERDICT)),
    ]
    spent = sum(
      (entries[c.name] or {}).get('processor_hours') or 0
      for c in recipe.cells
      if not c.runs_of
    )
    hours += spent
    totals = [a + b for a, b in zip(totals, counts, strict=True)]
    link = f'[{recipe.title}](#{_anchor(recipe.title)})'
    rows.append([link, *map(str, counts), f'{spent:.2f}'])
  rows.append(['**all**', *(f'**{n}**' for n in totals), f'**{hours:.2f}**'])
  head = (
    'paper', 'published cells', 'run', 'no difference detected', 'different',
    'not comparable', 'no verdict', 'processor hours spent',
  )  # fmt: skip
  return '\n'.join(markdown(head, rows))


def _anchor(title: str) -> str:
  """The anchor that Markdown gives a heading."""
  kept = ''.join(c for c in title.lower() if c.isalnum() or c in ' -_')
  return '-'.join(kept.split())


def _section(recipe: Recipe, kept: pathlib.Path, figures: Sequence[str]) -> str:
  lines = [f'## {recipe.title}', '', f'{recipe.reference}.', '']
  lines.append(recipe.setting.strip())
  lines += ['', f'Sources: {recipe.facts}', '']
  rows, reasons = [], {}
  for cell in recipe.cells:
    entry = ledger.read(kept, recipe.name, cell.name)
    verdict = ledger.verdict(cell, entry)
    if verdict == 'not comparable':
      reasons[cell.comparable] = ''
    if cell.why and entry is not None:
      reasons[f'{cell.row}: {cell.why}'] = ''
    row = [cell.row + _rates(cell, entry), published(cell), here(cell, entry)]
    rows.append([*row, difference(cell, entry), half_width(cell, entry), verdict])
  lines += markdown(_HEAD, rows)
  told_why = [f'- {" ".join(reason.split())}' for reason in reasons]
  if recipe.why:
    told_why.insert(0, f'- {" ".join(recipe.why.split())}')
  if told_why:
    lines += [
      '',
      'Differences from the published setting, and known reasons for different '
      'results:',
      '',
    ]
    lines += told_why
  if recipe.own_data:
    lines += ['', recipe.own_data.strip()]
  for name in figures:
    what = 'published and reproduced values' if name.endswith('_table') else 'curves'
    lines += ['', f'![{recipe.title}: {what}](figures/{name}.png)']
  return '\n'.join(lines)


def _rates(cell: Cell, entry: ledger.Entry | None) -> str:
  """The value of each learning rate, and how it was chosen, if a cell tries several."""
  if not entry or len(entry['rates']) < 2:
    return ''
  digits = MEASURES[cell.measure][0]
  rates = [
    f'{rate}: {"not reached" if value is None else f"{value:.{digits}f}"}'
    for rate, value in entry['rates'].items()
  ]
  return f' (best of {len(rates)} rates on test examples; rate {", ".join(rates)})'


def _draw(recipe: Recipe, kept: pathlib.Path, folder: pathlib.Path) -> set[str]:
  """Draws the pictures of a recipe; the names of those that there are."""
  wanted = pictures.of(recipe, kept)
  try:
    from . import published_curves
  except ImportError:  # Figures are optional.
    return {name for name in wanted if (folder / f'{name}.png').is_file()}
  for name, shown in wanted.items():
    published_curves.write(shown, folder / f'{name}.png')
  return set(wanted)
