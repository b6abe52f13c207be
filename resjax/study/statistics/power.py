"""The smallest difference that a comparison can be expected to show."""

from scipy import optimize, stats

from resjax.study.statistics.intervals import t_quantile


def detectable(seeds: int, *, contrasts: int = 1, level: float = 0.95, power: float = 0.8) -> float:
  """Returns the least difference that a paired t test finds, in deviations of a paired one.

  P(T > t(1 − (1 − level)/2K, ν)) = power, T ~ noncentral t with ν = n − 1 and δ √n

  Findings of the wrong sign do not count.

  Args:
    seeds: the number n of paired differences, above 1.
    contrasts: the number K of tests that share the error, as in the strictest step of Holm.
    level: one less the rate of false findings.
    power: the share of sweeps in which a difference δ of this size is found.
  """
  freedom = seeds - 1
  critical = t_quantile(freedom, 1 - (1 - level) / contrasts)

  def missing(delta: float) -> float:
    return float(stats.nct.sf(critical, freedom, delta * seeds**0.5)) - power

  return float(optimize.brentq(missing, 0.0, 2 + 8 * critical / seeds**0.5))
