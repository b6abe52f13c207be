"""The switch layer: where along depth the next token comes to stand before the input token."""

import numpy as np

from resjax.analysis.alignment import Switch


def switch_layer(
  rows: np.ndarray,
  tokens: np.ndarray,
  *,
  num_bootstrap: int = 1000,
  level: float = 0.95,
  seed: int = 0,
) -> Switch | None:
  """Returns the switch of a target token, with a bootstrap confidence interval over rows.

  It is the first depth position from which on the mean log-rank of the target is below that of
  both others, the input token and a third one, to the end of depth. The third one says what chance
  gives: for the next token it is a shuffled target, so that a token that is merely frequent makes
  no switch. Rows, not tokens, are drawn with replacement: tokens of a row are not independent.

  The paper's pages give ranks of the two tokens and where they cross; "stays there" and the third
  token are ours.

  Args:
    rows: Σ of log-ranks over the tokens of each row [P, 3, rows]: target, input, third.
    tokens: how many tokens each row has [rows].
    num_bootstrap: resamples.
    level: of the interval, in (0, 1).
    seed: of the resamples.

  Returns:
    The switch; None where there are no tokens.

  Source: Residual Connections and the Causal Shift, arXiv 2602.14760.
  """
  if not tokens.sum():
    return None
  rng = np.random.default_rng(seed)
  count, depth = len(tokens), len(rows)
  drawn = rng.multinomial(count, np.full(count, 1 / count), size=num_bootstrap)
  # Means compare like sums: all three are over the same tokens.
  whole = _first(np.sum(rows, axis=-1)[..., None])[0]
  places = np.sort(_first(rows @ drawn.T.astype(rows.dtype)))
  tail = (1 - level) / 2
  lower = places[int(np.floor(tail * (num_bootstrap - 1)))]
  upper = places[int(np.ceil((1 - tail) * (num_bootstrap - 1)))]
  index, lower, upper = (None if place == depth else int(place) for place in (whole, lower, upper))
  return Switch(index, lower, upper, level, num_bootstrap, float(np.mean(places < depth)))


def _first(sums: np.ndarray) -> np.ndarray:
  """Returns where the target comes to stand first for good [n], P for nowhere; sums: [P, 3, n]."""
  ahead = (sums[:, 0] < sums[:, 1]) & (sums[:, 0] < sums[:, 2])
  behind = ~ahead[::-1]
  return len(sums) - np.where(behind.any(axis=0), behind.argmax(axis=0), len(sums))
