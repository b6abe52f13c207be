"""The names of depth positions and of switches in words, and their places along depth."""

from collections.abc import Sequence

import numpy as np

from resjax.study.analysis.alignment import Alignment, DepthPosition, Group, Switch
from resjax.study.analysis.switch_layer import RANK_RATIO


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


def switch_text(alignment: Alignment, switch: Switch | None) -> str:
  """Returns the switch and its interval in words, such as `after layer 3 (95%: 2 to 5)`."""
  if switch is None:
    return "no tokens"
  if switch.index is None and switch.is_localised:
    return "no switch"
  called = names(alignment.positions)
  lower, at, upper = (
    "nowhere" if index is None else called[index]
    for index in (switch.lower, switch.index, switch.upper)
  )
  between = " to ".join(end.removeprefix("layer ") for end in (lower, upper))
  interval = f"{switch.level:.0%}: {between}" if alignment.num_rows > 1 else "one row: no interval"
  return f"after {at} ({interval})" if switch.is_localised else f"not localised ({interval})"


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
  """Returns where a model switches, and how much better than chance it ends, in a sentence."""
  group = next(iter(alignment.readings.values()))["all"]
  where, times = switch_text(alignment, group.switch), effect(alignment)
  if group.switch is not None and group.switch.index is not None:
    where = f"switches {where}"
  if times is None:
    return where
  chance = ", which is no better than chance" if times < 1 / RANK_RATIO else ""
  return (
    f"{where}; in the end the next token ranks {times:.3g} times better than a random one{chance}"
  )


def subtitle(alignment: Alignment, group: Group) -> str:
  """Returns a line with the model, the corpus and the number of tokens."""
  return f"{alignment.model}  |  {alignment.corpus}  |  n = {group.num_tokens:,} tokens"


def interval(x: np.ndarray, switch: Switch) -> tuple[float, float]:
  """Returns the interval of a switch on an axis with places x [P]; nowhere is the last place."""
  lower, upper = (x[-1 if end is None else end] for end in (switch.lower, switch.upper))
  return lower, upper


def _sites(positions: Sequence[DepthPosition]) -> list[str]:
  return [position.site for position in positions if position.layer == 0]
