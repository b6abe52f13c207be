"""What a family of models is."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Tensor
from resjax.models.config import DecoderConfig, ResidualConfig, ShortSWAConfig
from resjax.nn.rope import RopeScaling


@dataclasses.dataclass(frozen=True)
class Family:
  """Models that share a config.json format and names of tensors.

  Attributes:
    model_type: its name in config.json.
    architecture: the class of transformers.
    read: settings of config.json to the fields of `decoder_config`.
    write: the inverse; what it cannot express, reading it again shows.
    tensors: all that any of its models has.
    prefix: of the names, without which some files have them.
    buffers: ends of the names of tensors that are no parameters.
    whole_heads: whether D must be a multiple of H, whatever C is.
  """

  model_type: str
  architecture: str
  read: Callable[[Settings], dict[str, Any]]
  write: Callable[[DecoderConfig], dict[str, Any]]
  tensors: tuple[Tensor, ...]
  prefix: str
  buffers: tuple[str, ...] = ()
  whole_heads: bool = False

  def decoder_config(self, settings: Settings, dtype: str = "float32") -> DecoderConfig:
    """Returns the config of a decoder.

    Args:
      settings: of config.json.
      dtype: of the activations.

    Raises:
      ValueError: a setting that the decoder does not have.
    """
    fields = self.read(settings)
    fields["init_std"] = float(settings.take("initializer_range", 0.02))
    settings.finish()
    return DecoderConfig(**_PLAIN | fields, dtype=dtype)

  def tensors_of(self, parameters: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Returns the tensors of a decoder with these parameters, by path."""
    return tuple(tensor for tensor in self.tensors if tensor.ours in parameters)


# What most families have; fields that are missing here each of them gives.
_PLAIN = {
  "positions": "rope",
  "rope_theta": 10000.0,
  "rope_fraction": 1.0,
  "rope_scaling": RopeScaling(),
  "post_norm": False,
  "bias": "none",
  "parallel": False,
  "qk_norm": False,
  "query_pre_attn_scalar": 0.0,
  "windows": (0,),
  "attention_softcap": 0.0,
  "logit_softcap": 0.0,
  "embed_scale": False,
  "value_residual": "none",
  "short_swa": ShortSWAConfig(),
  "scaled_output_init": True,
  "attention": "auto",
  "remat": "full",
  "depth": "scan",
  "residual": ResidualConfig(),
}


def pattern(windows: list[int]) -> tuple[int, ...]:
  """Returns the shortest run of windows that, repeated, gives those of all layers."""
  for period in range(1, len(windows)):
    if all(size == windows[i % period] for i, size in enumerate(windows)):
      return tuple(windows[:period])
  return tuple(windows)


def rope_settings(config: DecoderConfig) -> dict[str, Any]:
  """Returns the settings of rotary positions, in the spelling that every version reads."""
  scaling = config.rope_scaling
  values = None
  if scaling.kind == "linear":
    values = {"rope_type": "linear", "factor": scaling.factor}
  elif scaling.kind == "llama3":
    values = {
      "rope_type": "llama3",
      "factor": scaling.factor,
      "low_freq_factor": scaling.low_freq_factor,
      "high_freq_factor": scaling.high_freq_factor,
      "original_max_position_embeddings": scaling.original_max_positions,
    }
  return {"rope_theta": config.rope_theta, "rope_scaling": values}
