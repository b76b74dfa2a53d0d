"""Average ranks of methods over data sets, and their critical difference.

Demšar, "Statistical comparisons of classifiers over multiple data sets", Journal of
Machine Learning Research 7 (2006), Sections 3.2.2 and 3.2.4 and Figure 1.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.stats
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.plots.style import STYLE
from fesem_jax.utils.display import method_name, names_in_figure
from fesem_jax.utils.errors import check


def average_ranks(scores: np.ndarray) -> np.ndarray:
  """Mean ranks [k] of k methods over N data sets; 1 is best, and equal ones share.

  `scores` is [N, k], larger ones better.
  """
  return scipy.stats.rankdata(-scores, axis=1).mean(axis=0)


def critical_difference_of(methods: int, datasets: int, alpha: float = 0.05) -> float:
  """The least difference of two average ranks that Nemenyi's test calls different."""
  q = scipy.stats.studentized_range.ppf(1 - alpha, methods, np.inf) / np.sqrt(2)
  return float(q * np.sqrt(methods * (methods + 1) / (6 * datasets)))


def not_different(ranks: Sequence[float], difference: float) -> list[tuple[int, int]]:
  """The first and last of each largest group of sorted ranks within a difference.

  Groups of one are left out.
  """
  groups: list[tuple[int, int]] = []
  for i, rank in enumerate(ranks):
    last = max(j for j in range(i, len(ranks)) if ranks[j] - rank <= difference)
    if last > i and (not groups or last > groups[-1][1]):
      groups.append((i, last))
  return groups


def critical_difference(
  scores: Mapping[str, Mapping[str, float]], alpha: float = 0.05
) -> Figure:
  """Draws the average ranks of methods over data sets.

  Bars join methods whose ranks differ by less than the critical difference of Nemenyi's
  test. Few data sets detect large differences only.

  Args:
    scores: data set -> method -> its score, larger ones better; all data sets have the
      same methods.
    alpha: level of the test.

  Returns:
    The figure; its title has the p-value of Friedman's test for three or more methods.

  Raises:
    UserError: with fewer than two data sets or methods, or if their methods differ.
  """
  methods = list(next(iter(scores.values()), {}))
  several = len(scores) > 1 and len(methods) > 1
  check(several, 'scores: ranks need two data sets and two methods')
  for name, own in scores.items():
    check(set(own) == set(methods), f'scores: {name} has other methods')
  table = np.array([[own[m] for m in methods] for own in scores.values()], np.float64)
  check(np.isfinite(table).all(), 'scores: ranks need finite ones')
  ranks = average_ranks(table)
  order = np.argsort(ranks, kind='stable')
  names, ranks = names_in_figure(method_name(methods[i]) for i in order), ranks[order]
  difference = critical_difference_of(len(methods), len(scores), alpha)
  title = f'Average ranks over {len(scores)} data sets (1 is best)'
  if len(methods) > 2:
    tied = (table == table[:, :1]).all()  # Friedman's statistic is 0 / 0.
    p = 1.0 if tied else scipy.stats.friedmanchisquare(*table.T).pvalue
    title += f'; Friedman p = {p:.2g}'
  with plt.rc_context(STYLE):
    size = (6.7, 1.3 + 0.32 * len(names))
    figure, axis = plt.subplots(figsize=size, layout='constrained')
    places = np.arange(len(names))
    axis.plot(ranks, places, 'o', color='black')
    right = max(len(names), 1 + difference)
    groups = not_different(list(ranks), difference)
    for number, (first, last) in enumerate(groups, 1):
      x, ends = right + 0.2 * number, [first - 0.2, last + 0.2]
      axis.plot([x, x], ends, color='0.35', linewidth=3, solid_capstyle='butt')
    for place, rank in zip(places, ranks, strict=True):
      axis.annotate(f'{rank:.2f}', (rank, place), (6, -3), textcoords='offset points')
    axis.plot([1, 1 + difference], [-1.2, -1.2], color='black', marker='|')
    axis.annotate(f'critical difference {difference:.2f}', (1, -1.2), (0, 4),
                  textcoords='offset points')  # fmt: skip
    axis.set_yticks(places, names)
    axis.set_ylim(len(names) - 0.5, -1.9)
    axis.set_xlim(0.9, right + 0.2 * (len(groups) + 1))
    axis.set_xlabel(
      f'Average rank; bars join methods that do not differ (p > {alpha:g})'
    )
    axis.set_title(title, fontsize='medium')
  return figure
