"""Converts the alignment of a run in progress to a record of metrics.jsonl, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from resjax.study.analysis.alignment import (
  ESTIMATES,
  Alignment,
  DepthPosition,
  Estimate,
  Group,
  Shift,
)
from resjax.study.analysis.depth_positions import MAIN

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
_LENGTH = "unread"  # of the estimates the one that is a number of layers, and no place
_BOUNDS = {"layer": "index", "lower": "lower", "upper": "upper"}
_SAMPLING = ("level", "num_bootstrap")
_EMBEDDING = DepthPosition(-1, "embedding")


def to_record(alignment: Alignment) -> dict[str, float | None]:
  """Returns the means over all tokens after every layer, and the shift by probability.

  The names of means are alignment/METRIC/LAYER, with layer -1 for the embedding. Of each estimate
  of the shift there are alignment/emergence_layer, the bounds of its interval, alignment/
  emergence_lower and alignment/emergence_upper, and the share of resamples; the first three are
  numbers of layers, or None for nowhere. Those of alignment/unread count layers.
  """
  group = alignment.readings["closed"]["all"]
  shift = group.shifts[MAIN]
  record: dict[str, Any] = {"num_rows": alignment.num_rows}
  record |= {name: getattr(group, name) for name in _COUNTS}
  for name in ESTIMATES:
    found, first = getattr(shift, name), 0 if name == _LENGTH else -1
    for key, bound in _BOUNDS.items():
      index = getattr(found, bound)
      record[f"{name}_{key}"] = None if index is None else index + first
    record[f"{name}_share"] = found.share
  record |= {f"shift_{name}": getattr(shift, name) for name in _SAMPLING}
  for metric in METRICS:
    for position, value in zip(alignment.positions, group.metrics[metric], strict=True):
      record[f"{metric}/{position.layer}"] = float(value)
  return {f"{PREFIX}{name}": value for name, value in record.items()}


def from_record(record: Mapping[str, Any], model: str, corpus: str, site: str) -> Alignment | None:
  """Returns the alignment of which `to_record` made a record, or None if the record has none.

  A record lacks the names of model and corpus, and the last site of a layer.
  """
  found = {k.removeprefix(PREFIX): v for k, v in record.items() if k.startswith(PREFIX)}
  if f"shift_{_SAMPLING[0]}" not in found:
    return None
  layers = [int(name.rpartition("/")[2]) for name in found if name.startswith(f"{METRICS[0]}/")]
  fields: dict[str, Any] = {name: found[f"shift_{name}"] for name in _SAMPLING}
  for name in ESTIMATES:
    first = 0 if name == _LENGTH else -1
    bounds = (found[f"{name}_{key}"] for key in _BOUNDS)
    index, lower, upper = (None if bound is None else bound - first for bound in bounds)
    fields[name] = Estimate(index, lower, upper, found[f"{name}_share"])
  metrics = {m: np.array([found[f"{m}/{layer}"] for layer in layers], float) for m in METRICS}
  group = Group(
    **{name: found[name] for name in _COUNTS}, metrics=metrics, shifts={MAIN: Shift(**fields)}
  )
  positions = tuple(_EMBEDDING if layer < 0 else DepthPosition(layer, site) for layer in layers)
  readings = {"closed": {"all": group}}
  return Alignment(model, corpus, found["num_rows"], positions, readings, None)
