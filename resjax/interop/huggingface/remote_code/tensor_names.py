"""The names of the tensors of a decoder with remote code."""

from collections.abc import Collection, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from resjax.base import Array
from resjax.interop.huggingface.tensors import Tensor
from resjax.models import DecoderConfig, Parameter

# The beginning of a path, and of the name of its tensor.
_PLACES = (
  ("embed/embedding", "model.embed_tokens.weight"),
  ("embed/positions", "model.embed_positions.weight"),
  ("output/embedding", "lm_head.weight"),
  ("final_norm/", "model.norm."),
  ("layers/attention/", "model.layers.{}.self_attn."),
  ("layers/mlp/", "model.layers.{}.mlp."),
  ("layers/moe/router/", "model.layers.{}.mlp.gate."),
  ("layers/moe/selection_bias", "model.layers.{}.mlp.gate.e_score_correction_bias"),
  ("layers/moe/shared/", "model.layers.{}.mlp.shared_mlp."),
  ("layers/moe/", "model.layers.{}.mlp.experts.{}."),
  ("layers/norms/attention/", "model.layers.{}.attention_norms."),
  ("layers/norms/mlp/x/", "model.layers.{}.mlp_norm."),
  ("layers/post_norms/attention/", "model.layers.{}.attention_out_norm."),
  ("layers/post_norms/mlp/", "model.layers.{}.mlp_out_norm."),
  ("layers/norms/short_swa/x/", "model.layers.{}.short_norm."),
  ("layers/post_norms/short_swa/", "model.layers.{}.short_out_norm."),
  ("layers/short_swa/", "model.layers.{}.short_swa."),
  ("layers/norm_gates/attention/", "model.layers.{}.attention_gates."),
  ("layers/norm_gates/mlp/x/", "model.layers.{}.mlp_gate."),
  ("layers/norm_gates/short_swa/x/", "model.layers.{}.short_gate."),
  ("value_weights", "model.values.weights"),
  ("value_gate/kernel", "model.values.gate"),
  ("value_share", "model.values.share"),
  ("combinator/", "model.residual."),
)


def _parts(config: DecoderConfig) -> dict[str, dict[str, tuple]]:
  """Returns, for parameters of a combinator that are split over several tensors, those tensors.

  For each tensor there is its name, and the index of its part in the parameter. The names follow
  Kimi K3, where a query is a projection to one number.
  """
  if config.residual.name != "block_attn_res":
    return {}
  reads = [f"{site}_res".replace("attention", "self_attention") for site in config.sites]
  every, names = slice(None), [f"model.layers.{{}}.{read}" for read in reads]
  return {
    "combinator/query": {
      f"{name}_proj.weight": (every, slice(site, site + 1)) for site, name in enumerate(names)
    },
    "combinator/key_scale": {
      f"{name}_norm.weight": (every, site) for site, name in enumerate(names)
    },
    "combinator/final_query": {"model.output_attn_res_proj.weight": (None,)},
    "combinator/final_key_scale": {"model.output_attn_res_norm.weight": ()},
  }


class RemoteNames:
  """What a `Family` says of its tensors, for all decoders with remote code.

  Attributes:
    tensors: those whose place decides how a folder is read: the embeddings.
    prefix: the beginning of most names of tensors, which some files leave out.
    buffers: the endings of names of tensors that are not parameters.
  """

  prefix = "model."
  buffers = ("rotary_emb.inv_freq",)
  nested = None
  tensors = tuple(Tensor(name, path) for path, name in _PLACES[:3])

  def as_stored(self, stored: Collection[str]) -> Self:
    """Returns these names: there is one form of such files."""
    return self

  def tensors_of(self, config: DecoderConfig, parameters: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Returns the tensors of a decoder, given its parameters by path, parts `apart`."""
    return tuple(_tensor(path) for path in parameters)


def _tensor(path: str) -> Tensor:
  """Returns the tensor of a parameter."""
  if path.startswith("model."):  # a part, whose path is the name
    return Tensor(path, path)
  place, name = next((place, name) for place, name in _PLACES if path.startswith(place))
  rest = path.removeprefix(place).replace("/", ".")
  if place == "combinator/" or not rest or rest.endswith("bias"):
    return Tensor(name + rest, path)
  module, _, kind = rest.rpartition(".")  # the kernel of a linear map, or the scale of a norm
  return Tensor(f"{name}{module}{'.' * bool(module)}weight", path, kind == "kernel")


def apart(config: DecoderConfig, values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns parameters by path, with those in parts for which several tensors exist.

  Args:
    config: of the decoder.
    values: arrays, or the `Parameter`s that describe them.
  """
  parts = _parts(config)
  found = {path: value for path, value in values.items() if path not in parts}
  for path in parts.keys() & values.keys():
    for name, index in parts[path].items():
      found[name] = _part(values[path], index)
  return found


def _part(value: Any, index: tuple) -> Any:
  if not isinstance(value, Parameter):
    return value[index]
  shape = np.empty(value.shape)[index].shape
  return Parameter(shape, (None,) * len(shape))


def together(
  config: DecoderConfig, values: Mapping[str, Array], parameters: Mapping[str, Parameter]
) -> dict[str, Array]:
  """Returns arrays by path, the inverse of `apart`.

  Args:
    config: of the decoder.
    values: the arrays, in parts.
    parameters: what describes whole arrays.
  """
  parts = _parts(config)
  whole = dict(values)
  for path in parts.keys() & parameters.keys():
    pieces = {name: whole.pop(name) for name in parts[path]}
    shape, indices = parameters[path].shape, parts[path]

    def joined(pieces: dict[str, Array], shape: Any = shape, indices: Any = indices) -> Array:
      found = jnp.zeros(shape, next(iter(pieces.values())).dtype)
      for name, index in indices.items():
        found = found.at[index].set(pieces[name])
      return found

    whole[path] = jax.jit(joined)(pieces)
  return whole
