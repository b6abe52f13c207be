"""Tables of depth probes in a terminal, of 80 columns at most."""

from collections.abc import Iterator

import numpy as np

from resjax.base import terminal
from resjax.study.analysis.depth_probes import DepthProbes, Measured

_COLUMNS = 4  # beside the layer
# By heading, what its column shows.
_WORDS = {
  "angle": "angle: between the states before and behind the layer, over π",
  "causal": "causal: how much later layers change what they add without it (share, mean)",
  "swap": "swap: how much the loss changes where it and the next one swap (share)",
  "loss": "loss: above that of the whole model without the layer (nats per token)",
  "rank": "rank: effective rank of the streams' mixing matrices, multiplied up to here",
  "Jacobian": "Jacobian: ‖J − I‖ / √W of the layer's mean Jacobian",
}


def tables(found: DepthProbes) -> Iterator[tuple[terminal.Table, list[str]]]:
  """Yields tables, each with lines that say what it shows."""
  columns = {
    "angle": found.angle_to_next,
    "causal": found.causal_mean,
    "swap": found.swap_with_next,
    "loss": found.skipped,
    "rank": found.effective_rank,
    "Jacobian": found.jacobian,
  }
  shown = [(name, one) for name, one in columns.items() if one is not None]
  for first in range(0, len(shown), _COLUMNS):
    part = dict(shown[first : first + _COLUMNS])
    table = terminal.Table(numbers=("layer", *part))
    for layer in range(found.num_layers):
      table.add_row(str(layer), *(cell(one, layer) for one in part.values()))
    yield table, [_WORDS[name] for name in part]
  if found.pruned is not None:
    table = terminal.Table(numbers=("removed", "the last of them", "loss above"))
    for place, layer in enumerate(found.pruned_layers):
      table.add_row(str(place + 1), f"layer {layer}", cell(found.pruned, place))
    yield table, ["without several layers together, those of least loss first"]


def caption(found: DepthProbes) -> list[str]:
  """Returns lines that say what all tables rest on, and what is missing in them."""
  return [
    f"loss {found.loss:.4f} nats per token over {found.num_tokens:,} tokens of {found.corpus}; "
    f"±: half of the 95% interval over {found.num_rows} rows",
    *found.not_defined,
  ]


def cell(one: Measured, place: int) -> str:
  """Returns the text of a mean with half its interval, which a text of one row does not have."""
  mean, half = one.mean[place], one.half[place]
  if np.isnan(mean):
    return ""
  return f"{mean:.4f}" + (f" ±{half:.4f}" if np.isfinite(half) else "")
