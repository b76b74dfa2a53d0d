"""Checks of the entries of a record of metrics.jsonl."""

from collections.abc import Sequence
from typing import Any

# Entries of a record; others are of callbacks, and may be anything.
_NUMBERS = (
  'train_loss', 'trained', 'failed', 'moved', 'objective', 'ari', 'nmi', 'ami',
  'finetuning_failed', 'seconds',
)  # fmt: skip
_SCORES = ('deployed', 'finetuned')
_OF_CLUSTERS = {'cluster_sizes', 'ari', 'nmi', 'objective'}


def unlike_a_record(
  record: dict[str, Any], before: Sequence[dict[str, Any]]
) -> str | None:
  """The first entry of a record that is not of the kind that runs write."""

  def is_number(value: Any) -> bool:
    return value is None or (
      isinstance(value, int | float) and not isinstance(value, bool)
    )

  def are_scores(value: Any, like: Any) -> bool:
    return (
      isinstance(value, dict)
      and all(x is not None and is_number(x) for x in value.values())
      # Runs of older versions did not measure the loss of every task.
      and value.keys() ^ like.keys() <= {'micro_loss', 'macro_loss'}
    )

  for name in _NUMBERS:
    if not is_number(record.get(name)):
      return name
  sizes = record.get('cluster_sizes')
  if sizes is not None and not (
    isinstance(sizes, list) and all(type(size) is int for size in sizes)
  ):
    return 'cluster_sizes'
  if 'moved' in record and not record.keys() >= _OF_CLUSTERS:
    return 'moved'
  measured = next((r for r in before if _SCORES[0] in r), record)
  if len({name in record for name in _SCORES}) > 1:
    return _SCORES[_SCORES[0] in record]
  honest = record.get('honest', {})
  if 'honest' in record and not (isinstance(honest, dict) and {*_SCORES} <= {*honest}):
    return 'honest'
  for name in _SCORES:
    for held in (record, honest):
      if name in held and not are_scores(held[name], measured[name]):
        return name
  return None
