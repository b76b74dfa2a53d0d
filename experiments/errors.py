"""The library's error messages in the words of the command line."""

import re

from absl import flags

# Arguments of the library whose flag has another name.
_FLAG_OF = {
  'beta1': 'server_beta1',
  'beta2': 'server_beta2',
  'epochs': 'local_epochs',
  'fraction': 'unseen_fraction',
  'layers': 'init_layers',
  'name': 'dataset',
  'path': 'output',
  'steps': 'local_steps',
  'tau': 'server_tau',
}

_ARGUMENT = re.compile(r'`([A-Za-z_]\w*)(=[^`\n]*)?`')


def in_flags(sentence: str) -> str:
  """The sentence with flags in place of the library's arguments in backquotes.

  `name` and `name=value` become --name and --name=value where the running binary has
  such a flag, else they only lose the backquotes.
  """

  def replacement(match: re.Match[str]) -> str:
    name, value = match[1], match[2] or ''
    flag = _FLAG_OF.get(name, name)
    return f'--{flag}{value}' if flag in flags.FLAGS else f'{name}{value}'

  return _ARGUMENT.sub(replacement, sentence)
