"""Model families: the class, and functions that families share."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Tensor
from resjax.models import DecoderConfig, ResidualConfig, ShortSWAConfig
from resjax.nn import RopeScaling


@dataclasses.dataclass(frozen=True)
class Family:
  """Models that share the format of config.json and the names of tensors.

  Attributes:
    model_type: the name of the family in config.json.
    architecture: the class of its models in transformers.
    read: returns fields of `DecoderConfig` for the settings of config.json.
    write: the inverse; what the family cannot express shows when the settings are read again.
    tensors: all tensors that a model of the family may have.
    prefix: the beginning of most names of tensors, which some files leave out.
    buffers: the endings of names of tensors that are not parameters.
    whole_heads: whether D must be a multiple of H, whatever the head width C is.
    parallel: `tensors` where attention and MLP read the same input, if they differ. Two parameters
      may have one name there; they must be equal to be written.
    fused: `tensors` of files that have the experts of a layer in one tensor; empty: there are none.
    nested: the name of the family, and the class, of files that hold such a model in `text_config`,
      beside what reads images; None: there are no such files.
    fixed_by_vllm: settings of config.json that always have these values in vLLM's own model.
  """

  model_type: str
  architecture: str
  read: Callable[[Settings], dict[str, Any]]
  write: Callable[[DecoderConfig], dict[str, Any]]
  tensors: tuple[Tensor, ...]
  prefix: str
  buffers: tuple[str, ...] = ()
  whole_heads: bool = False
  parallel: tuple[Tensor, ...] = ()
  fused: tuple[Tensor, ...] = ()
  nested: tuple[str, str] | None = None
  fixed_by_vllm: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def routes(self) -> bool:
    """Whether layers have a mixture of experts."""
    return bool(self.fused)

  def decoder_config(self, settings: Settings, dtype: str = "float32") -> DecoderConfig:
    """Returns the config of a decoder, whose activations have this dtype.

    Raises:
      ValueError: A setting has a value that the decoder does not support.
    """
    fields = _COMMON_FIELDS | self.read(settings)
    fields["init_std"] = float(settings.take("initializer_range", 0.02))
    settings.finish()
    return DecoderConfig(**fields, dtype=dtype)

  def as_stored(self, stored: Collection[str]) -> Self:
    """Returns the family with that table of tensors whose experts are among the stored ones."""
    own = {tensor.name.rpartition("{}")[2] for tensor in {*self.fused} - {*self.tensors}}
    has_fused = any(name.endswith(tuple(own)) for name in stored)
    return dataclasses.replace(self, tensors=self.fused) if has_fused else self

  def tensors_of(self, config: DecoderConfig, parameters: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Returns the tensors of a decoder, given its parameters by path."""
    table = self.parallel if config.parallel and self.parallel else self.tensors
    return tuple(tensor for tensor in table if tensor.path in parameters)


# The fields of `DecoderConfig` that are the same in most families; each family sets the others.
_COMMON_FIELDS: dict[str, Any] = {
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


def read_fields(
  settings: Settings, names: Mapping[str, str], defaults: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns fields of `DecoderConfig`, given the field of each setting.

  A setting that is missing has its default; without one, `Settings.take` refuses the file.
  """
  return {
    field: settings.take(name, defaults[name]) if name in defaults else settings.take(name)
    for name, field in names.items()
  }


def write_fields(config: DecoderConfig, names: Mapping[str, str]) -> dict[str, Any]:
  """Returns the settings of config.json, the inverse of `read_fields`."""
  return {name: getattr(config, field) for name, field in names.items()}
