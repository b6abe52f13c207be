"""Statistics of comparisons: arms that were run with the same seeds, and proportions.

NumPy and SciPy alone; nothing here knows what an arm is made of.
"""

from resjax.study.statistics.contrasts import Contrast, Difference, against_best, compare
from resjax.study.statistics.intervals import mean_interval, t_quantile
from resjax.study.statistics.multiplicity import holm
from resjax.study.statistics.power import detectable

__all__ = [
  "Contrast",
  "Difference",
  "against_best",
  "compare",
  "detectable",
  "holm",
  "mean_interval",
  "t_quantile",
]
