"""The settings of rotary positions in a config.json, in old and new spelling.

New files have `rope_parameters`, which families with several rotations nest by the type of a layer;
older ones have `rope_theta` and `rope_scaling`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from resjax.interop.huggingface.settings import Settings
from resjax.models import DecoderConfig, LayerRope
from resjax.nn import Rope, RopeScaling

SLIDING, FULL = "sliding_attention", "full_attention"
# The settings of each kind of scaling, and the fields of `RopeScaling` that they become: those that
# a file must have, and those that it may have.
_ORIGINAL = {"original_max_position_embeddings": "original_max_positions"}
_REQUIRED: dict[str, dict[str, str]] = {
  "default": {},
  "linear": {"factor": "factor"},
  "llama3": {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    **_ORIGINAL,
  },
  "yarn": {"factor": "factor", **_ORIGINAL},
  "longrope": {
    "short_factor": "short_factors", "long_factor": "long_factors", "factor": "factor", **_ORIGINAL
  },
}  # fmt: skip
_GAIN = {"attention_factor": "attention_factor"}
_OPTIONAL: dict[str, dict[str, str]] = {
  "yarn": {"beta_fast": "beta_fast", "beta_slow": "beta_slow", "truncate": "truncate", **_GAIN},
  "longrope": _GAIN,
}
_UNUSED = ("finetuned",)  # by transformers


def read_rope(
  settings: Settings,
  *,
  theta: float = 10000.0,
  fraction: float | None = None,
  names: tuple[str, str] = ("rope_theta", "partial_rotary_factor"),
  original: int = 0,
  aliases: Mapping[str, str] | None = None,
) -> dict[str, Any]:
  """Returns the fields of `DecoderConfig` for one rotation, the same for all layers that have one.

  Args:
    settings: the settings of the file.
    theta: the base, where the file does not say.
    fraction: the share of each head that is rotated, where the file does not say; None for families
      that rotate whole heads.
    names: the names of base and fraction outside of `rope_parameters`.
    original: the length of the rows of pretraining, where the file does not say; 0: that of rows.
    aliases: the kinds of scaling that have other names in files of the family.
  """
  given = _without_nulls(settings.take("rope_parameters", {}))
  given = _without_nulls(settings.take("rope_scaling", {})) or given
  base = given.pop("rope_theta", settings.take(names[0], theta))
  part = given.pop("partial_rotary_factor", settings.take(names[1], fraction or 1.0))
  if fraction is None and part != 1:
    raise settings.refusal(names[1], part, "1.0")
  n = settings.take("original_max_position_embeddings", original)
  given |= {"original_max_position_embeddings": n} if n else {}
  scaling = _scaling(settings, given, aliases or {})
  return {"rope_theta": float(base), "rope_fraction": float(part), "rope_scaling": scaling}


def read_layer_ropes(
  settings: Settings, windows: Sequence[int], thetas: Mapping[str, float], local: str | None
) -> dict[str, Any]:
  """Returns the fields of `DecoderConfig` for a rotation for each type of layer.

  Args:
    settings: the settings of the file.
    windows: the window of each layer; 0: it attends to all earlier tokens.
    thetas: the bases by type of layer, where the file does not say.
    local: the name of the base of layers with windows in older files, if they have it.
  """
  new = settings.take("rope_parameters", {})
  for name in new:
    if name not in (SLIDING, FULL):
      raise settings.refusal(f"rope_parameters.{name}", new[name], f"{SLIDING}, {FULL}")
  given = {kind: _without_nulls(new.get(kind)) for kind in (SLIDING, FULL)}
  given[FULL] |= _without_nulls(settings.take("rope_scaling", {}))
  given[FULL].setdefault("rope_theta", settings.take("rope_theta", thetas[FULL]))
  # transformers reads the base of layers with windows from `local` alone.
  base = settings.take(local, thetas[SLIDING]) if local else thetas[SLIDING]
  given[SLIDING].setdefault("rope_theta", base)
  ropes = {}
  for kind, values in given.items():
    theta = float(values.pop("rope_theta"))
    if values.get("truncate", True) is not True:  # which transformers does not look for here
      raise settings.refusal(f"rope_parameters.{kind}.truncate", False, "True")
    ropes[kind] = LayerRope(theta, _scaling(settings, values, {}))
  return rope_fields([ropes[SLIDING if size else FULL] for size in windows])


def rope_fields(ropes: Sequence[LayerRope]) -> dict[str, Any]:
  """Returns the fields of `DecoderConfig` for the rotations of its layers."""
  pattern = shortest_pattern(ropes)
  if len(pattern) > 1 or pattern[0].theta == 0:
    return {"ropes": pattern}
  return {"rope_theta": pattern[0].theta, "rope_scaling": pattern[0].scaling}


def shortest_pattern(values: Sequence[Any]) -> tuple[Any, ...]:
  """Returns the shortest sequence of values that, repeated, gives the values of all layers."""
  for period in range(1, len(values)):
    if all(value == values[i % period] for i, value in enumerate(values)):
      return tuple(values[:period])
  return tuple(values)


def rope_settings(config: DecoderConfig, *, longrope: bool = False) -> dict[str, Any]:
  """Returns the settings of one rotation, in the spelling that every transformers reads.

  Args:
    config: the decoder; of several rotations this is the first.
    longrope: whether the family may have `longrope`: others do not compute the cache anew where
      the wavelengths change. The kind of scaling then has its older name.
  """
  rope = next(filter(None, config.layer_ropes), None) or Rope(config.rope_theta)
  written = rope.scaling if longrope or rope.scaling.kind != "longrope" else RopeScaling()
  name = "type" if longrope else "rope_type"
  return {"rope_theta": rope.theta, "rope_scaling": _write_scaling(written, name)}


def layer_rope_settings(
  config: DecoderConfig, thetas: Mapping[str, float], local: str | None
) -> dict[str, Any]:
  """Returns the settings of a rotation for each type of layer, the inverse of `read_layer_ropes`.

  They are in both spellings: transformers 4 reads the older, and 5 prefers the newer.
  """
  kinds = [SLIDING if size else FULL for size in config.layer_windows]
  ropes = {kind: Rope(theta) for kind, theta in thetas.items()}
  ropes |= {kind: rope for kind, rope in zip(kinds, config.layer_ropes, strict=True) if rope}
  nested = {
    kind: {"rope_type": "default", "rope_theta": rope.theta} | (_write_scaling(rope.scaling) or {})
    for kind, rope in ropes.items()
  }
  old = {"rope_theta": ropes[FULL].theta, "rope_scaling": _write_scaling(ropes[FULL].scaling)}
  old |= {local: ropes[SLIDING].theta} if local else {}
  return old | {"rope_parameters": nested}


def _scaling(
  settings: Settings, given: Mapping[str, Any], aliases: Mapping[str, str]
) -> RopeScaling:
  values = {name: value for name, value in given.items() if name not in _UNUSED}
  kinds = {values.pop(name, None) for name in ("rope_type", "type")} - {None}
  kind = kinds.pop() if len(kinds) == 1 else "default" if not kinds else str(kinds)
  kind = aliases.get(kind, kind)
  if kind not in _REQUIRED:
    raise settings.refusal("rope_scaling.rope_type", kind, ", ".join(_REQUIRED))
  required, optional = _REQUIRED[kind], _OPTIONAL.get(kind, {})
  if "original_max_position_embeddings" in required:
    longest = settings.take("max_position_embeddings", 0)
    n = values.setdefault("original_max_position_embeddings", longest)
    if kind in ("yarn", "longrope"):
      values.setdefault("factor", longest / n)
  else:
    values.pop("original_max_position_embeddings", None)
  if kind == "yarn":
    _resolve_mscale(values)
  for name in (*required, *values):
    if name not in required | optional or name not in values:
      allowed = ", ".join(required | optional)
      raise settings.refusal(
        f"rope_scaling.{name}", values.get(name), f"{allowed or 'nothing'} with {kind}"
      )
  fields: dict[str, Any] = {
    field: tuple(map(float, values[name])) if isinstance(values[name], list) else values[name]
    for name, field in (required | optional).items()
    if name in values
  }
  return RopeScaling(kind="none" if kind == "default" else kind, **fields)


def _resolve_mscale(values: dict[str, Any]) -> None:
  """Replaces the two numbers that older files of yarn have by the gain that they make."""
  both = [values.pop(name, 0.0) for name in ("mscale", "mscale_all_dim")]
  if all(both) and values["factor"] > 1:
    top, bottom = (0.1 * scale * math.log(values["factor"]) + 1 for scale in both)
    values.setdefault("attention_factor", top / bottom)


def _write_scaling(scaling: RopeScaling, name: str = "rope_type") -> dict[str, Any] | None:
  """Returns the settings of a scaling, without those that have their defaults; None of none."""
  if scaling.kind == "none":
    return None
  values = {key: getattr(scaling, field) for key, field in _REQUIRED[scaling.kind].items()}
  for key, field in _OPTIONAL.get(scaling.kind, {}).items():
    if getattr(scaling, field) != getattr(RopeScaling, field):
      values[key] = getattr(scaling, field)
  return {name: scaling.kind} | values


def _without_nulls(values: Mapping[str, Any] | None) -> dict[str, Any]:
  return {name: value for name, value in (values or {}).items() if value is not None}
