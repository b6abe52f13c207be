"""Converts the alignment of a run in progress to a record of metrics.jsonl, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from resjax.study.analysis.alignment import Alignment, DepthPosition, Group, Switch

PREFIX = "alignment/"
# The metrics that a record has for every depth position.
METRICS = (
  "input_log_rank",
  "next_log_rank",
  "input_probability",
  "next_probability",
  "cosine_input",
  "cosine_next",
  "hidden_norm",
)
_COUNTS = ("num_tokens", "num_kl_tokens")
_BOUNDS = {"switch_layer": "index", "switch_lower": "lower", "switch_upper": "upper"}
_SAMPLING = ("level", "num_bootstrap", "share")
_EMBEDDING = DepthPosition(-1, "embedding")


def to_record(alignment: Alignment) -> dict[str, float | None]:
  """Returns the means over all tokens after every layer, and the switch.

  The names of means are alignment/METRIC/LAYER, with layer -1 for the embedding. The entry
  alignment/switch_layer and the bounds of its interval are numbers of layers, or None for nowhere.
  """
  group = alignment.readings["closed"]["all"]
  record: dict[str, Any] = {"num_rows": alignment.num_rows}
  record |= {name: getattr(group, name) for name in _COUNTS}
  for name, bound in _BOUNDS.items():
    index = getattr(group.switch, bound)
    record[name] = None if index is None else alignment.positions[index].layer
  record |= {f"switch_{name}": getattr(group.switch, name) for name in _SAMPLING}
  for metric in METRICS:
    for position, value in zip(alignment.positions, group.metrics[metric], strict=True):
      record[f"{metric}/{position.layer}"] = float(value)
  return {f"{PREFIX}{name}": value for name, value in record.items()}


def from_record(record: Mapping[str, Any], model: str, corpus: str, site: str) -> Alignment | None:
  """Returns the alignment of which `to_record` made a record, or None if the record has none.

  A record lacks the names of model and corpus, and the last site of a layer.
  """
  found = {k.removeprefix(PREFIX): v for k, v in record.items() if k.startswith(PREFIX)}
  if not found:
    return None
  layers = [int(name.rpartition("/")[2]) for name in found if name.startswith(f"{METRICS[0]}/")]
  fields: dict[str, Any] = {name: found[f"switch_{name}"] for name in _SAMPLING}
  for name, bound in _BOUNDS.items():
    fields[bound] = None if found[name] is None else layers.index(found[name])
  metrics = {m: np.array([found[f"{m}/{layer}"] for layer in layers], float) for m in METRICS}
  group = Group(**{name: found[name] for name in _COUNTS}, metrics=metrics, switch=Switch(**fields))
  positions = tuple(_EMBEDDING if layer < 0 else DepthPosition(layer, site) for layer in layers)
  readings = {"closed": {"all": group}}
  return Alignment(model, corpus, found["num_rows"], positions, readings, None)
