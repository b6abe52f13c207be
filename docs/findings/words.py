"""Figures as docs/findings.md writes them: with as many digits as their interval leaves."""

from collections.abc import Sequence

from resjax.study.statistics import Difference, decimals, student


def mean(values: Sequence[float], unit: str = "") -> str:
  """Returns the mean of independent values with its 95 % interval, as `1.20 (1.10 to 1.30), n = 5`.

  Args:
    values: two values at least, one for each seed, text or model.
    unit: what stands behind the mean, such as ` %`.
  """
  found = student(values)
  low, high = found.interval()
  return f"{interval(float(found.mean), float(low), float(high), unit=unit)}, n = {len(values)}"


def difference(found: Difference) -> str:
  """Returns a paired difference with its 95 % interval, n, and p after Holm."""
  if found.interval is None or found.holm is None:
    return f"{_signed(f'{found.mean:+.2g}')}, n = {len(found.seeds)}"
  shown = interval(found.mean, *found.interval, sign="+")
  return f"{shown}, n = {len(found.seeds)}, {p_value(found.holm)}"


def interval(mean: float, low: float, high: float, *, sign: str = "", unit: str = "") -> str:
  """Returns an estimate with its interval, to two digits of half its width."""
  form = f"{sign}.{decimals(low, high)}f"
  shown = [_signed(format(value, form)) for value in (mean, low, high)]
  return f"{shown[0]}{unit} ({shown[1]} to {shown[2]})"


def p_value(p: float) -> str:
  """Returns a p value in words."""
  return "p < 0.001" if p < 0.001 else f"p = {p:#.2g}"


def _signed(number: str) -> str:
  return number.replace("-", "\N{MINUS SIGN}")
