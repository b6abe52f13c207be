"""The settings that the config.json of a GGUF file's model has.

Keys of the file's architecture that are not known here become settings with their own names, which
whoever reads the config.json refuses or ignores by name.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from resjax.data.gguf.header import GgufTensor
from resjax.data.warn_once import warn_once

# The architectures that are read, and model_type in config.json.
MODEL_TYPES = {
  "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "smollm3": "smollm3",
  "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text",
}  # fmt: skip
_SIZES = {
  "embedding_length": "hidden_size",
  "block_count": "num_hidden_layers",
  "feed_forward_length": "intermediate_size",
  "attention.head_count": "num_attention_heads",
  "context_length": "max_position_embeddings",
}
_OPTIONS = {
  "attention.head_count_kv": "num_key_value_heads",
  "attention.layer_norm_rms_epsilon": "rms_norm_eps",
  "rope.freq_base": "rope_theta",
  "rope.freq_base_swa": "rope_local_base_freq",
  "attention.sliding_window": "sliding_window",
  "attn_logit_softcapping": "attn_logit_softcapping",
  "final_logit_softcapping": "final_logit_softcapping",
  "expert_count": "num_experts",
  "expert_used_count": "num_experts_per_tok",
}
_SCALING = {
  "type": "rope_type",
  "factor": "factor",
  "original_context_length": "original_max_position_embeddings",
}
_EPS = "attention.layer_norm_rms_epsilon"
_FREQUENCIES = "rope_freqs.weight"
_LOW, _HIGH = 1.0, 4.0  # factors of the scaling of Llama 3.1 in all models that have it
# The layers of the 27B models, whose queries are scaled by D / H and not by the width of a head.
_OF_27B = {"gemma2": 46, "gemma3": 62}
_SPECIAL = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


def read(
  place: object, metadata: Mapping[str, Any], tensors: Mapping[str, GgufTensor]
) -> dict[str, Any]:
  """Returns the settings by their names in config.json.

  Args:
    place: the file, for messages.
    metadata: its metadata by name.
    tensors: its tensors by name.

  Raises:
    ValueError: the file is one of several, its architecture is not read, or sizes are missing.
  """
  kind = metadata.get("general.architecture")
  if kind not in MODEL_TYPES:
    raise ValueError(
      f"{place}: general.architecture={kind!r} is not read from GGUF files; allowed: "
      f"{', '.join(MODEL_TYPES)}. Give the folder of safetensors that it was made of"
    )
  if metadata.get("split.count", 1) > 1:
    raise ValueError(
      f"{place} is file {metadata.get('split.no', 0) + 1} of {metadata['split.count']}, which are "
      "read as one file alone; join them with llama-gguf-split --merge"
    )
  prefix = f"{kind}."
  # Zero switches off whatever a key says, experts and softcaps among them.
  own = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix) and v != 0}
  return {"model_type": MODEL_TYPES[kind]} | _settings(_Model(place, kind, own, metadata, tensors))


class _Model:
  """What a file says about its model; keys that are taken are left out of `own`."""

  def __init__(
    self,
    place: object,
    kind: str,
    own: dict[str, Any],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, GgufTensor],
  ):
    self.place, self.kind, self.own = place, kind, own
    self.metadata, self.tensors = metadata, tensors

  def rows(self, name: str) -> int:
    if name not in self.tensors:
      raise ValueError(f"{self.place} has no tensor {name}; give a file that holds a whole model")
    return self.tensors[name].shape[0]

  def size(self, key: str) -> int:
    value = self.own.pop(key, None)
    if not isinstance(value, int) or value < 1:
      found = "has no" if value is None else f"{value!r} is no positive integer:"
      raise ValueError(f"{self.place}: {found} {self.kind}.{key}; give a file that has it")
    return value


def _settings(model: _Model) -> dict[str, Any]:
  found: dict[str, Any] = {name: model.size(key) for key, name in _SIZES.items()}
  heads = found["num_attention_heads"]
  width = model.own.pop("attention.key_length", None) or model.rows("blk.0.attn_q.weight") // heads
  if _EPS not in model.own:
    warn_once(f"{model.place} has no {model.kind}.{_EPS}; its family's 1e-06 is taken")
  found |= {name: model.own.pop(key) for key, name in _OPTIONS.items() if key in model.own}
  found |= {
    "num_key_value_heads": found.get("num_key_value_heads", heads),
    "head_dim": width,
    "vocab_size": model.rows("token_embd.weight"),
    "tie_word_embeddings": "output.weight" not in model.tensors,
    "attention_bias": "blk.0.attn_output.bias" in model.tensors,
  }
  found |= _special_tokens(model)
  for key, expected in {
    "vocab_size": found["vocab_size"],
    "attention.value_length": width,
    "rope.dimension_count": width,
  }.items():
    if (value := model.own.pop(key, expected)) != expected:
      raise ValueError(
        f"{model.place}: {model.kind}.{key}={value!r} is not read; allowed: {expected}"
      )
  found |= _scaling(model, found)
  if model.kind in _OF_27B:
    found |= _windows(model) | _query_scale(model, found)
  return found | model.own


def _special_tokens(model: _Model) -> dict[str, int]:
  keys = {name: f"tokenizer.ggml.{key}_token_id" for name, key in _SPECIAL.items()}
  return {name: model.metadata[key] for name, key in keys.items() if key in model.metadata}


def _scaling(model: _Model, found: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the setting of scaled rotations, if the file has one."""
  begin = "rope.scaling."
  given = {k.removeprefix(begin): model.own.pop(k) for k in [*model.own] if k.startswith(begin)}
  scaling = {_SCALING.get(key, key): value for key, value in given.items()}
  if scaling.get("rope_type", "none") == "none":
    scaling = {}
  if (old := model.own.pop("rope.scale_linear", 1)) != 1:
    scaling = {"rope_type": "linear", "factor": old}
  if _FREQUENCIES in model.tensors:
    scaling = _llama3(model, found)
  return {"rope_scaling": scaling} if scaling else {}


def _llama3(model: _Model, found: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the scaling of Llama 3.1 whose divisors of frequencies a file has for each pair."""
  divisors = model.tensors[_FREQUENCIES].read()
  pairs = np.arange(0, found["head_dim"], 2) / found["head_dim"]
  lengths = 2 * math.pi * found.get("rope_theta", 10000.0) ** pairs
  if divisors.shape == lengths.shape:
    factor = float(f"{divisors.max():.6g}")
    share = (factor / np.maximum(divisors, 1) - 1) / max(factor - 1, 1)
    middle = np.argmin(np.abs(share - 0.5))
    original = round(float(lengths[middle] * (_LOW + share[middle] * (_HIGH - _LOW))))
    share = np.clip((original / lengths - _LOW) / (_HIGH - _LOW), 0, 1)
    if np.allclose(divisors, 1 / ((1 - share) / factor + share), rtol=1e-3):
      factors = {"factor": factor, "low_freq_factor": _LOW, "high_freq_factor": _HIGH}
      sizes = {"original_max_position_embeddings": original}
      return {"rope_type": "llama3"} | factors | sizes
  raise ValueError(
    f"{model.place}: {_FREQUENCIES} is not that of Llama 3.1, the only one that is read; give the "
    "folder of safetensors that the file was made of"
  )


def _windows(model: _Model) -> dict[str, Any]:
  """Returns which layers of Gemma have windows, where the file says it."""
  pattern = model.own.pop("attention.sliding_window_pattern", None)
  if isinstance(pattern, list):
    kinds = {True: "sliding_attention", False: "full_attention"}
    return {"layer_types": [kinds[bool(one)] for one in pattern]}
  return {} if pattern is None else {"sliding_window_pattern": pattern}


def _query_scale(model: _Model, found: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what queries of Gemma are divided by the root of, as llama.cpp takes it."""
  if scale := model.own.pop("attention.scale", None):
    return {"query_pre_attn_scalar": float(f"{scale**-2:.6g}")}
  large = found["num_hidden_layers"] == _OF_27B[model.kind]
  wide = found["hidden_size"] // found["num_attention_heads"]
  return {"query_pre_attn_scalar": wide if large else found["head_dim"]}
