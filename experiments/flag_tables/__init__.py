"""The flags of all experiment binaries: tables of names, defaults and help."""

from .data import DATA
from .method import METHOD
from .run import MACHINE, PROCESSES, RUN
from .training import MODEL, TRAINING

GROUPS = {
  'data': DATA,
  'model': MODEL,
  'training': TRAINING,
  'run': RUN,
  'machine': MACHINE,
  'processes': PROCESSES,
  'method': METHOD,
}
