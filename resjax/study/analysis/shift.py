"""The shift: up to which depth the lens reads the input token, and from where on the next one."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from resjax.study.analysis.alignment import CLAIMED_SHARE, Estimate, Shift

RANK_RATIO = 0.7  # the most that the target's mean rank is in the end of that of a random token
READ_SHARE = 0.5  # of what the target has in the end: with it a token is read
WIDTH_SHARES = (0.1, 0.9)  # of what the target has in the end: between them it emerges


class Rows(NamedTuple):
  """What the lens says of one token at every position of a text, such as of the next token.

  Attributes:
    sums: the sums of each of `MEASURES` over the tokens of each row [P, rows]. A token without a
      measure has 0 by it.
    tokens: the number of tokens of each row [rows].
  """

  sums: Mapping[str, np.ndarray]
  tokens: np.ndarray

  def of(self, chosen: np.ndarray) -> "Rows":
    """Returns the rows for which `chosen` [rows] is true; the others have no tokens."""
    sums = {measure: values * chosen for measure, values in self.sums.items()}
    return Rows(sums, self.tokens * chosen)

  def means(self, measure: str, drawn: np.ndarray) -> np.ndarray:
    """Returns the means of a measure [P, n], given how often each row is drawn [rows, n]."""
    tokens = self.tokens @ drawn
    if measure not in self.sums:
      return np.zeros((1, len(tokens)))
    return self.sums[measure] @ drawn / np.where(tokens > 0, tokens, np.nan)


class Compared(NamedTuple):
  """The tokens whose shift is asked for, and those that show what chance gives.

  Attributes:
    target: the target at P depth positions, such as the next token.
    this: the input token.
    target_chance: a random token as frequent as the target.
    this_chance: a random token as frequent as the input token.
  """

  target: Rows
  this: Rows
  target_chance: Rows
  this_chance: Rows

  def gains(self, weights: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns what the lens says of target and input token beyond chance, by measure [P, n].

    The weights [rows, n] tell how often each row is drawn.
    """
    return {
      measure: (
        self.target.means(measure, weights) - self.target_chance.means(measure, weights),
        self.this.means(measure, weights) - self.this_chance.means(measure, weights),
      )
      for measure in self.target.sums
    }


def shifts(
  compared: Compared, *, num_bootstrap: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Shift]:
  """Returns the shift from the input token to a target, by each measure, with its intervals.

  Let m_x(p) be the mean of a measure of token x at depth position p: of its probability, of minus
  the logarithm of its rank, of the cosine between state and embedding, or of the projection. Let
  c_x(p) be that of a random token as frequent as x. The *gain* of x is what the lens says of it
  beyond its frequency, and what the target has of it in the end is the unit of all that follows:

    g_x(p) = m_x(p) - c_x(p)                 G = g_target(P - 1)
    x is read at p                           g_x(p) >= G / 2
    departure   = min {p : for all q >= p    the input token is not read at q}
    emergence   = min {p : for all q >= p    g_target(q) >= G / 2}
    onset, completion                        the same with G / 10 and 9 G / 10
    crossing    = min {p : for all q >= p    g_target(q) > g_input(q)}
    unread      = max(emergence - departure, 0)

  Both tokens are judged by the same threshold, so that a token which the lens hardly ever says, as
  an input token where embedding and head are not tied, is not called read because it was once said
  less rarely. A departure of 0 means that the input token is read nowhere, and none that it is
  read to the end. A crossing counts where one of both tokens is read at it; otherwise it is an
  `unread_crossing`, of two tokens of which the lens says nothing.

  Nothing is claimed of a model which in the end knows nothing of the target: there the geometric
  mean rank of the target must be at most `RANK_RATIO` of the random token's, and G positive. All of
  this is asked of every resample of the rows (tokens of a row depend on each other), and an
  estimate is claimed only if `CLAIMED_SHARE` of the resamples have it, in an interval narrower than
  half of the depth: see `Estimate`.

  The paper shows similarities to both tokens over depth, and where they cross; the unit, what is
  read, and the conditions are additions.

  Args:
    compared: the tokens.
    num_bootstrap: the number of resamples.
    level: the confidence level of the intervals, in (0, 1).
    seed: the seed of the resamples.

  Returns:
    The shift by each measure of the target; nothing if there are no tokens.

  Source: Residual Connections and the Causal Shift, arXiv 2602.14760.
  """
  if not compared.target.tokens.sum():
    return {}
  gains = compared.gains(_draws(len(compared.target.tokens), num_bootstrap, seed))
  known = _known(gains)
  return {measure: _shift(*both, known, level) for measure, both in gains.items()}


def balanced_shifts(
  whole: Compared,
  parts: Sequence[Compared],
  *,
  num_bootstrap: int = 1000,
  level: float = 0.95,
  seed: int = 0,
) -> dict[str, Shift]:
  """Returns the shift in which every group of tokens has the same weight: fixed effects of groups.

  With the gain g_k(p) of the target in group k of K, and G_k that in the end, it is the shift of

    g(p) = 1/K sum_k g_k(p) / G_k            G = 1

  beside g_input(p) / G of all tokens. Each group is measured by its own chance and by its own end,
  so that neither how often nor how well its tokens are said moves the mean. Groups of which the
  model knows nothing in the end, see `shifts`, are left out.

  Args:
    whole: the tokens of all groups.
    parts: the tokens of each group.
    num_bootstrap: the number of resamples.
    level: the confidence level of the intervals, in (0, 1).
    seed: the seed of the resamples.

  Returns:
    The shift by each measure; nothing if fewer than two groups are known.
  """
  weights = _draws(len(whole.target.tokens), num_bootstrap, seed)
  every = [part.gains(weights) for part in parts if part.target.tokens.sum()]
  every = [gains for gains in every if _known(gains).mean() >= CLAIMED_SHARE]
  found = {}
  for measure, (target, this) in whole.gains(weights).items() if len(every) > 1 else ():
    ends = [gains[measure][0][-1] for gains in every]
    known = np.all([target[-1] > 0, *(end > 0 for end in ends)], axis=0)
    units = [np.where(known, end, np.nan) for end in (target[-1], *ends)]
    shares = [gains[measure][0] / end for gains, end in zip(every, units[1:], strict=True)]
    found[measure] = _shift(np.mean(shares, axis=0), this / units[0], known, level)
  return found


def _draws(count: int, num_bootstrap: int, seed: int) -> np.ndarray:
  """Returns how often each row is drawn [rows, 1 + n], first for the text itself."""
  # The mean of R - 1 rows drawn from R has the variance of the mean of R new ones.
  rng, draws = np.random.default_rng(seed), max(count - 1, 1)
  drawn = rng.multinomial(draws, np.full(count, 1 / count), size=num_bootstrap)
  return np.concatenate([np.ones((1, count)), drawn]).T


def _known(gains: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
  """Returns for which draws [n] the model knows the target in the end: false where it is NaN."""
  return gains["log_rank"][0][-1] >= -math.log(RANK_RATIO)


def _shift(target: np.ndarray, this: np.ndarray, known: np.ndarray, level: float) -> Shift:
  """Returns the shift of gains [P, 1 + n], of the text and of its resamples.

  Nothing is claimed for the resamples that `known` [1 + n] leaves out.
  """
  depth, end = len(target), target[-1]
  known = known & (end > 0)
  read = this >= READ_SHARE * end, target >= READ_SHARE * end
  departure, emergence = _since(~read[0]), _since(read[1])
  onset, completion = (_since(target >= share * end) for share in WIDTH_SHARES)
  crossing = _since(target > this)
  at = np.minimum(crossing, depth - 1), np.arange(len(end))
  seen = read[0][at] | read[1][at]
  unread = np.where(departure < depth, np.maximum(emergence - departure, 0), depth)

  def estimate(places: np.ndarray, counted: np.ndarray = known) -> Estimate:
    return _estimate(np.where(known & counted, places, depth), depth, level)

  return Shift(
    departure=estimate(departure),
    onset=estimate(onset),
    emergence=estimate(emergence),
    completion=estimate(completion),
    crossing=estimate(crossing, seen),
    unread_crossing=estimate(crossing, ~seen),
    unread=estimate(unread),
    level=level,
    num_bootstrap=len(end) - 1,
  )


def _since(holds: np.ndarray) -> np.ndarray:
  """Returns the positions [n] from which on something holds [P, n] to the end; P for nowhere."""
  broken = ~holds[::-1]
  return len(holds) - np.where(broken.any(axis=0), broken.argmax(axis=0), len(holds))


def _estimate(places: np.ndarray, depth: int, level: float) -> Estimate:
  """Returns the estimate of places [1 + n], of the text and its resamples; depth: nowhere."""
  whole, ordered = places[0], np.sort(places[1:])
  tail, last = (1 - level) / 2, len(ordered) - 1
  lower, upper = ordered[math.floor(tail * last)], ordered[math.ceil((1 - tail) * last)]
  share = float(np.mean(ordered < depth))
  claimed = share >= CLAIMED_SHARE and 2 * (upper - lower) < depth - 1
  index, lower, upper = (
    None if place == depth else int(place) for place in (whole if claimed else depth, lower, upper)
  )
  return Estimate(index, lower, upper, share)
