"""The switch layer: from which depth on the next token ranks before the input token."""

import math

import numpy as np

from resjax.study.analysis.alignment import SWITCHING_SHARE, Switch

RANK_RATIO = 0.7  # the most that the target's mean rank is of that of a token drawn by frequency


def switch_layer(
  rows: np.ndarray,
  tokens: np.ndarray,
  *,
  num_bootstrap: int = 1000,
  level: float = 0.95,
  seed: int = 0,
) -> Switch | None:
  """Returns the switch to a target token, with a bootstrap confidence interval over rows.

  The switch is the first depth position from which on, to the end of depth, the geometric mean rank
  of the target is below that of the input token, and at most `RANK_RATIO` of that of a third token.
  The third token shows what chance gives: where the target is the next token, it is a shuffled
  target, so that a token that is merely frequent makes no switch. The bootstrap draws rows, because
  tokens of a row depend on each other.

  A switch is claimed only if `SWITCHING_SHARE` of the resamples have one, and the interval of its
  position is narrower than half of the depth. Otherwise its index is None: see `Switch`.

  The paper gives the ranks of two tokens and where they cross; the third token with its ratio, the
  condition that the order stays to the end, and the two conditions on resamples are additions.

  Args:
    rows: the sums of log-ranks of target, input and third token over each row [P, 3, rows].
    tokens: the number of tokens of each row [rows].
    num_bootstrap: the number of resamples.
    level: the confidence level of the interval, in (0, 1).
    seed: the seed of the resamples.

  Returns:
    The switch, or None if there are no tokens.

  Source: Residual Connections and the Causal Shift, arXiv 2602.14760.
  """
  if not tokens.sum():
    return None
  rng = np.random.default_rng(seed)
  count, depth = len(tokens), len(rows)
  drawn = rng.multinomial(count, np.full(count, 1 / count), size=num_bootstrap)
  drawn = drawn.T.astype(rows.dtype)
  whole = _first(rows.sum(axis=-1, keepdims=True), tokens.sum(keepdims=True))[0]
  places = np.sort(_first(rows @ drawn, tokens @ drawn))
  tail = (1 - level) / 2
  lower = places[int(np.floor(tail * (num_bootstrap - 1)))]
  upper = places[int(np.ceil((1 - tail) * (num_bootstrap - 1)))]
  share = float(np.mean(places < depth))
  claimed = share >= SWITCHING_SHARE and 2 * (upper - lower) < depth - 1
  index, lower, upper = (
    None if place == depth else int(place) for place in (whole if claimed else depth, lower, upper)
  )
  return Switch(index, lower, upper, level, num_bootstrap, share)


def _first(sums: np.ndarray, tokens: np.ndarray) -> np.ndarray:
  """Returns the positions from which on the target is first [n], or P.

  Args:
    sums: the sums of log-ranks of target, input and third token [P, 3, n].
    tokens: the number of tokens that all three are over [n].
  """
  target, this, third = sums[:, 0], sums[:, 1], sums[:, 2]
  ahead = (target < this) & (target <= third + math.log(RANK_RATIO) * tokens)
  behind = ~ahead[::-1]
  return len(sums) - np.where(behind.any(axis=0), behind.argmax(axis=0), len(sums))
