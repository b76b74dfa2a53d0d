"""The rates of each method of a comparison, and how they were chosen."""

from fesem_jax.analysis import tuning
from fesem_jax.analysis.tuning import Choice, Row
from fesem_jax.utils.errors import UserError

from . import methods, tune
from .errors import in_flags


def rows(by_label: tune.ByLabel, choices: dict[str, Choice | UserError]) -> list[Row]:
  """How the rates of each method were chosen.

  Args:
    by_label: label of each method -> its configuration for each seed, as it runs.
    choices: see `tune.tuned`; empty without --tune.
  """
  found = []
  for label, (config, *_) in by_label.items():
    choice = choices.get(label)
    names = dict.fromkeys(n for n in config if n.endswith('learning_rate'))
    if isinstance(choice, Choice):
      names |= dict.fromkeys(choice.values)
    values = {
      name: methods.server_rate(config)
      if name == 'server_learning_rate'
      else config[name]
      for name in names
      if methods.applies(config, name)
    }
    row = tuning.row(label, values, choice)
    found.append(row | {'chosen': in_flags(row['chosen'])})
  return found
