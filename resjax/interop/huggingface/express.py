"""Which family of models a decoder is one of."""

import dataclasses
from typing import Any

from resjax.interop.huggingface.families import FAMILIES, Family
from resjax.interop.huggingface.settings import Settings
from resjax.models.config import DecoderConfig

# What does not decide which function a trained decoder computes.
_FREE = ("dtype", "attention", "remat", "depth", "init_std", "scaled_output_init")
_ROPE = ("rope_theta", "rope_fraction", "rope_scaling")


def express(config: DecoderConfig) -> tuple[Family, dict[str, Any]]:
  """Returns the family of a decoder, and its settings in config.json.

  A family expresses a decoder if what it writes, read again, is the same function.

  Raises:
    ValueError: no family does; with the options that are in the way of the nearest.
  """
  found = {}
  for family in FAMILIES.values():
    settings = {"model_type": family.model_type, **family.write(config)}
    obstacles = _obstacles(family, settings, config)
    if not obstacles:
      return family, settings | {"initializer_range": config.init_std}
    found[family.model_type] = obstacles
  nearest = min(found, key=lambda name: len(found[name]))
  raise ValueError(
    f"no family that transformers knows expresses this decoder; in the way of the nearest, "
    f"{nearest}: {'; '.join(found[nearest])}"
  )


def _obstacles(family: Family, settings: dict[str, Any], config: DecoderConfig) -> list[str]:
  """Returns the options that a family does not express."""
  lines = []
  if family.whole_heads and config.d_model % config.num_heads:
    lines.append(
      f"config.model.num_heads={config.num_heads} must divide config.model.d_model={config.d_model}"
    )
  try:
    back = family.decoder_config(Settings(settings, "config.json"))
  except ValueError as error:
    return [*lines, str(error)]
  ours, theirs = _function(config), _function(back)
  return lines + [
    f"config.model.{name}={ours[name]!r}, there {theirs[name]!r}"
    for name in ours
    if name in theirs and ours[name] != theirs[name]
  ]


def _function(config: DecoderConfig) -> dict[str, Any]:
  """Returns the options that decide the function, each spelled in one way."""
  fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
  without = _FREE + (_ROPE if config.positions == "learned" else ())
  chosen = {name: value for name, value in fields.items() if name not in without}
  chosen["residual"] = config.residual.name
  chosen["short_swa"] = config.short_swa.window
  chosen["windows"] = config.layer_windows
  chosen["query_pre_attn_scalar"] = config.query_pre_attn_scalar or float(config.head_dim)
  if config.positions == "rope" and config.rope_scaling.kind != "llama3":
    scaling = config.rope_scaling
    chosen["rope_scaling"] = scaling.kind, 1.0 if scaling.kind == "none" else scaling.factor
  return chosen
