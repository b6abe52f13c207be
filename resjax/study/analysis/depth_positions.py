"""The names of depth positions and the shift in words, and their places along depth."""

from collections.abc import Sequence

import numpy as np

from resjax.study.analysis.alignment import (
  DECILES,
  Alignment,
  DepthPosition,
  Estimate,
  Group,
  Shift,
)
from resjax.study.analysis.shift import RANK_RATIO

MAIN = "probability"  # the measure by which a shift is told where there is room for one


def places(alignment: Alignment) -> np.ndarray:
  """Returns the layers before each depth position [P]: 0 at the embedding, L at the end."""
  sites = _sites(alignment.positions)
  found = [
    0.0 if p.layer < 0 else p.layer + (sites.index(p.site) + 1) / len(sites)
    for p in alignment.positions
  ]
  return np.array(found)


def num_layers(alignment: Alignment) -> int:
  """Returns the number of layers of the model."""
  return alignment.positions[-1].layer + 1


def names(positions: Sequence[DepthPosition]) -> list[str]:
  """Returns the names of depth positions: `embedding`, `layer 3`, or `layer 3 mlp`."""
  by_site = len(_sites(positions)) > 1
  return [
    "embedding" if p.layer < 0 else f"layer {p.layer}{f' {p.site}' * by_site}" for p in positions
  ]


def shift_of(alignment: Alignment, group: str = "all", reading: str = "") -> Shift | None:
  """Returns the shift of a group of tokens by `MAIN`; None if there are no tokens.

  The reading is the first one that was measured unless it is given.
  """
  groups = alignment.readings[reading] if reading else next(iter(alignment.readings.values()))
  return groups[group].shifts.get(MAIN) if group in groups else None


def unclaimed(shift: Shift | None) -> str:
  """Returns in words why nothing is claimed of a shift; empty where the next token is known."""
  if shift is None:
    return "no tokens"
  if shift.emergence.is_absent:
    return "no shift"
  return "" if shift.emergence.is_claimed else "not localised"


def departure_text(alignment: Alignment, shift: Shift | None) -> str:
  """Returns in words after which layer the input token is lost."""
  if shift is None or unclaimed(shift):
    return unclaimed(shift)
  if shift.departure.index == 0:
    return "read nowhere"
  return _text(alignment, shift, shift.departure, "read to the end")


def emergence_text(alignment: Alignment, shift: Shift | None) -> str:
  """Returns in words after which layer the next token emerges."""
  return "no tokens" if shift is None else _text(alignment, shift, shift.emergence, "no shift")


def width_text(alignment: Alignment, shift: Shift | None) -> str:
  """Returns in words after which layers the next token has a tenth and nine tenths."""
  if shift is None or unclaimed(shift):
    return unclaimed(shift)
  ends = (_at(alignment, one.index, "?") for one in (shift.onset, shift.completion))
  return " to ".join(ends)


def unread_text(alignment: Alignment, shift: Shift | None) -> str:
  """Returns in words for how many layers the lens reads neither token."""
  if shift is None or unclaimed(shift):
    return unclaimed(shift)
  found, sites = shift.unread, len(_sites(alignment.positions))
  if found.is_absent:
    return "none"
  lower, at, upper = (
    "?" if n is None else f"{n / sites:g}" for n in (found.lower, found.index, found.upper)
  )
  interval = _interval(alignment, shift, f"{lower} to {upper}")
  if found.index is None:
    return f"not localised {interval}"
  return f"{at} layer{'s' * (at != '1')} {interval}"


def crossing_text(alignment: Alignment, shift: Shift | None) -> str:
  """Returns in words after which layer the next token overtakes the input token.

  Where neither is read it is said, since then nothing of interest crosses.
  """
  if shift is None or unclaimed(shift):
    return unclaimed(shift)
  where = ", where neither is read" if shift.unread_crossing.is_claimed else ""
  return _text(alignment, shift, shift.any_crossing, "none") + where


def _text(alignment: Alignment, shift: Shift, found: Estimate, absent: str) -> str:
  """Returns an estimate of a shift in words, such as `after layer 3 (95%: 2 to 5)`, or `absent`."""
  if found.is_absent:
    return absent
  lower, upper = (_at(alignment, index, "nowhere") for index in (found.lower, found.upper))
  interval = _interval(alignment, shift, f"{lower} to {upper}")
  at = (
    "not localised" if found.index is None else f"after {names(alignment.positions)[found.index]}"
  )
  return f"{at} {interval}"


def _interval(alignment: Alignment, shift: Shift, ends: str) -> str:
  return f"({shift.level:.0%}: {ends})" if alignment.num_rows > 1 else "(one row: no interval)"


def _at(alignment: Alignment, index: int | None, nowhere: str) -> str:
  if index is None:
    return nowhere
  return names(alignment.positions)[index].removeprefix("layer ")


def effect(alignment: Alignment) -> float | None:
  """Returns how many times better the next token ranks in the end than a random one does.

  It is the quotient of their geometric mean ranks after the last layer; the random token is drawn
  by its frequency. A model that has learned nothing has about 1. None: no random token was ranked.
  """
  groups = next(iter(alignment.readings.values()))
  if "shuffled" not in groups:
    return None
  random, found = (groups[name].metrics["next_log_rank"][-1] for name in ("shuffled", "all"))
  times = float(np.exp(random - found))
  return times if np.isfinite(times) else None


def answer(alignment: Alignment) -> str:
  """Returns the shift of a model, and how much better than chance it ends, in a sentence."""
  shift, times = shift_of(alignment), effect(alignment)
  told = _told(alignment, shift)
  if times is not None:
    chance = ", which is no better than chance" if times < 1 / RANK_RATIO else ""
    told.append(
      f"in the end the next token ranks {times:.3g} times better than a random one{chance}"
    )
  shares = np.zeros(0)
  if alignment.depth_weights is not None:
    shares = alignment.depth_weights.running_sum()
  if len(shares):
    told.append(
      f"the running sum of the first depth block has {shares.mean():.2f} of the weight of its "
      f"reads ({shares.min():.2f} to {shares.max():.2f})"
    )
  return "; ".join(told)


def cells(alignment: Alignment, shift: Shift | None) -> list[str]:
  """Returns the cells of a table about a shift: lost, emerges, width, unread."""
  told = departure_text, emergence_text, width_text, unread_text
  return [text(alignment, shift) for text in told]


def marks(alignment: Alignment, shift: Shift | None) -> str:
  """Returns what the marks of a shift in a figure say: the note below it."""
  if shift is None or unclaimed(shift):
    return _told(alignment, shift)[0]
  return (
    f"dashed: input token lost, {departure_text(alignment, shift)}; line: next token emerges, "
    f"{emergence_text(alignment, shift)}; hatched: neither is read (by {MAIN})"
  )


def _told(alignment: Alignment, shift: Shift | None) -> list[str]:
  """Returns the parts of a sentence about a shift."""
  if shift is None or unclaimed(shift):
    return [_clause("the next token emerges", emergence_text(alignment, shift))]
  lost, emerges = departure_text(alignment, shift), emergence_text(alignment, shift)
  ends = _clause("the next token emerges", emerges)
  told = [
    _clause("the input token is" + " lost" * (not lost.startswith("read")), lost),
    f"{ends} of {num_layers(alignment)}, 10 to 90% of it after {width_text(alignment, shift)}",
  ]
  if shift.unread.index:
    share = shift.unread.index / (len(alignment.positions) - 1)
    told.append(
      f"for {unread_text(alignment, shift)}, {share:.0%} of the depth, the lens reads neither"
    )
  if is_elsewhere(alignment):
    told.append("in no tenth of the tokens by frequency it emerges there")
  return told


def _clause(event: str, where: str) -> str:
  """Returns an event with its place as a clause of a sentence; `no shift` is one of itself."""
  if where.startswith("no "):
    return where
  return f"where {event} is {where}" if where.startswith("not") else f"{event} {where}"


def is_elsewhere(alignment: Alignment) -> bool:
  """Returns whether the intervals of the emergence of all groups by frequency miss that of all.

  Then the mean over all tokens is that of a mixture, and describes none of its parts.
  """
  whole = shift_of(alignment)
  if whole is None or whole.emergence.index is None:
    return False
  x = np.arange(len(alignment.positions))
  lower, upper = interval(x, whole.emergence)
  parts = [part.emergence for name in DECILES if (part := shift_of(alignment, name)) is not None]
  ends = [interval(x, part) for part in parts if not part.is_absent]
  return bool(ends) and all(upper < low or high < lower for low, high in ends)


def subtitle(alignment: Alignment, group: Group) -> str:
  """Returns a line with the model, the corpus and the number of tokens."""
  return f"{alignment.model}  |  {alignment.corpus}  |  n = {group.num_tokens:,} tokens"


def interval(x: np.ndarray, found: Estimate) -> tuple[float, float]:
  """Returns the interval of an estimate on an axis with places x [P]; nowhere is the last place."""
  lower, upper = (x[-1 if end is None else end] for end in (found.lower, found.upper))
  return lower, upper


def _sites(positions: Sequence[DepthPosition]) -> list[str]:
  return [position.site for position in positions if position.layer == 0]
