"""The parameters of a decoder, before any of them exists."""

import dataclasses
from collections.abc import Mapping

from flax import nnx

from resjax.base.sharding import Layout
from resjax.models.config import DecoderConfig
from resjax.models.decoder import Decoder

# Logical axis of a parameter -> the letter of its size, and the setting that decides it.
SPLIT_AXES = {
  "layers": ("L", "config.model.num_layers"),
  "embed_param": ("D", "config.model.d_model"),
  "vocab": (
    "V",
    "config.data.tokenizer.vocab_size, or keep V whole by the rule vocab=() of config.sharding",
  ),
  "heads": ("H·C or K·C", "config.model.num_heads or num_kv_heads"),
  "mlp": ("F", "config.model.mlp_dim, or moe.expert_dim and num_shared_experts"),
  "experts": ("E", "config.model.moe.num_experts"),
}


@dataclasses.dataclass(frozen=True)
class Parameter:
  """The shape of a parameter, and the logical axis of each of its axes.

  Attributes:
    shape: the sizes; a parameter that is stacked over layers has L first.
    axes: the logical axes, see `resjax.base.sharding.Rules`; None: the axis is never split.
  """

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]

  @classmethod
  def of(cls, variable: nnx.Variable) -> "Parameter":
    """Returns shape and axes of a variable; a variable without axes is never split."""
    shape = tuple(variable.shape)
    own = variable.get_metadata().get("axes", (None,) * len(shape))
    stacked = ("layers", *[None] * len(shape))[: len(shape) - len(own)]
    return cls(shape, (*stacked, *own))


def parameters(config: DecoderConfig, layout: Layout) -> dict[str, Parameter]:
  """Returns every parameter of a decoder by its path; no array is made."""
  model = nnx.eval_shape(lambda: Decoder(config, layout=layout, rngs=nnx.Rngs(0)))
  flat = nnx.to_flat_state(nnx.state(model))
  return {"/".join(map(str, path)): Parameter.of(variable) for path, variable in flat}


def failures(found: Mapping[str, Parameter], layout: Layout) -> list[str]:
  """Returns a line for every size of a parameter's axis that does not divide over its devices."""
  paths: dict[tuple[str, int], list[str]] = {}
  for path, parameter in found.items():
    for axis, size in zip(parameter.axes, parameter.shape, strict=True):
      if axis and size % layout.num_shards(axis):
        paths.setdefault((axis, size), []).append(path)
  lines = []
  for (axis, size), where in paths.items():
    letter, setting = SPLIT_AXES[axis]
    more = f" and {len(where) - 1} more" if len(where) > 1 else ""
    lines.append(
      not_divisible(f"{letter}={size} of {where[0]}{more}", axis, layout) + f"; change {setting}"
    )
  return lines


def refuse(found: list[str]) -> None:
  """Raises a ValueError that has all lines, if there are any."""
  if found:
    raise ValueError("; ".join(found))


def not_divisible(what: str, axis: str, layout: Layout, times: int = 1) -> str:
  """Returns the line that says that a size does not divide.

  Args:
    what: the setting or parameter, and its size.
    axis: the logical axis that the size is of.
    layout: the mesh and the rules.
    times: what the size must be divisible by besides the number of devices.
  """
  sizes = {name: layout.mesh.shape[name] for name in layout.axes(axis)}
  factors = " × ".join(f"config.mesh.{name}={size}" for name, size in sizes.items() if size > 1)
  return f"{what} is not divisible by {layout.num_shards(axis) * times}, that is {factors}"
