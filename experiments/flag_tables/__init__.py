"""The flags of all experiment binaries, by the topics of --help."""

from .data import DATA, PARTITION
from .method import METHOD
from .run import EVALUATION, MACHINE, OUTPUT, PROCESSES, RUN
from .training import MODEL, PRIVACY, TRAINING

GROUPS = {
  'data': DATA,
  'partition': PARTITION,
  'model': MODEL,
  'training': TRAINING,
  'privacy': PRIVACY,
  'run': RUN,
  'evaluation': EVALUATION,
  'output': OUTPUT,
  'machine': MACHINE,
  'processes': PROCESSES,
  'methods': METHOD,
}
