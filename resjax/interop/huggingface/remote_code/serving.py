"""What vLLM's Transformers backend cannot serve."""

import jax.numpy as jnp

from resjax.interop.huggingface.remote_code.settings import abstract_combinator
from resjax.models import DecoderConfig


def vllm_obstacles(config: DecoderConfig) -> list[str]:
  """Returns a phrase for each reason why vLLM would compute something else than a decoder.

  It runs all sequences as one row, gives a model no cache but that of attention, whose windows have
  one size, and caps logits before it scales them. What a stock family expresses it serves like any
  model of the family.
  """
  name, found = config.residual.name, []
  if abstract_combinator(config).decode_cache(1, jnp.float32) is not None:
    found.append(
      f"config.model.residual.name={name!r} mixes tokens with these options, which needs a cache "
      "of its own"
    )
  if window := config.short_swa.window:
    found.append(f"config.model.short_swa.window={window} needs a cache of its own")
  if len(set(config.layer_windows) - {0}) > 1:
    found.append(f"config.model.windows={config.windows!r} has several sizes, there one")
  if any(rope.scaling.kind == "longrope" for rope in config.layer_ropes if rope is not None):
    found.append("config.model.rope_scaling.kind='longrope', there frequencies for every length")
  if config.routed_layers and config.mlp != "swiglu":
    found.append(f"config.model.mlp={config.mlp!r}, there swiglu for experts")
  if config.logit_softcap and config.mup.base_width:
    found.append("config.model.logit_softcap comes after the factor of config.model.mup.base_width")
  return found
