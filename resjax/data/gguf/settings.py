"""The settings that the config.json of a GGUF file's model has.

Keys of the file's architecture that are not known here become settings with their own names, which
whoever reads the config.json refuses or ignores by name.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np

from resjax.base import typed_json
from resjax.data.gguf.header import GgufTensor
from resjax.data.model_ids import ModelIds
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
}
# Zero switches each of them off, as null does in config.json; without a key the family decides.
_SWITCHES = {
  "attention.sliding_window": "sliding_window",
  "attn_logit_softcapping": "attn_logit_softcapping",
  "final_logit_softcapping": "final_logit_softcapping",
}
_SCALING = {
  "type": "rope_type",
  "factor": "factor",
  "original_context_length": "original_max_position_embeddings",
}
_UNSCALED = {"rope_type", "finetuned", "original_max_position_embeddings"}
_THETA = 10000.0  # of a file without rope.freq_base, whatever its family has
_EPS = "attention.layer_norm_rms_epsilon"
_FREQUENCIES = "rope_freqs.weight"
_LOW, _HIGH = 1.0, 4.0  # factors of the scaling of Llama 3.1 in all models that have it
# The layers of the 27B models, whose queries are scaled by D / H and not by the width of a head.
_OF_27B = {"gemma2": 46, "gemma3": 62}
ENDS = ("eos", "eot", "eom")  # what ends a text, a turn and a message: all of them end texts
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
# The types of the values that are compared or computed with here.
_Types = TypedDict(
  "_Types",
  {
    "general.architecture": str, "split.count": int, "split.no": int, "attention.key_length": int,
    "attention.scale": float, "rope.freq_base": _Positive, "rope.scale_linear": float,
  },
  total=False,
)  # fmt: skip


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
  prefix = f"{metadata.get('general.architecture')}."
  own = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
  typed_json.convert({**metadata, **own}, _Types, str(place))
  if metadata.get("split.count", 1) > 1:  # what it is a part of stands in the first one alone
    raise ValueError(
      f"{place} is file {metadata.get('split.no', 0) + 1} of {metadata['split.count']}, which are "
      "read as one file alone; join them with llama-gguf-split --merge"
    )
  if (kind := metadata.get("general.architecture")) not in MODEL_TYPES:
    raise ValueError(
      f"{place}: general.architecture={kind!r} is not read from GGUF files; allowed: "
      f"{', '.join(MODEL_TYPES)}. Give the folder of safetensors that it was made of"
    )
  return {"model_type": MODEL_TYPES[kind]} | _settings(_Model(place, kind, own, metadata, tensors))


@dataclasses.dataclass(frozen=True)
class _Model:
  """What a file says about its model; keys that are taken are left out of `own`."""

  place: object
  kind: str
  own: dict[str, Any]
  metadata: Mapping[str, Any]
  tensors: Mapping[str, GgufTensor]

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
  if count := model.own.pop("expert_count", 0):
    raise ValueError(
      f"{model.place}: {model.kind}.expert_count={count!r}: experts are not read from GGUF files; "
      "give the folder of safetensors that it was made of"
    )
  if _EPS not in model.own:
    warn_once(f"{model.place} has no {model.kind}.{_EPS}; its family's 1e-06 is taken")
  found |= {name: model.own.pop(key) for key, name in _OPTIONS.items() if key in model.own}
  found |= {name: model.own.pop(key) or None for key, name in _SWITCHES.items() if key in model.own}
  found |= {
    "rope_theta": found.get("rope_theta", _THETA),
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
    "attention.causal": True,
    "rope.dimension_count": width,
  }.items():
    if (value := model.own.pop(key, expected)) != expected:
      raise ValueError(
        f"{model.place}: {model.kind}.{key}={value!r} is not read; allowed: {expected}"
      )
  found |= _scaling(model, found)
  if model.kind in _OF_27B:
    found |= _windows(model) | _query_scale(model, found)
  if model.kind == "gemma3":  # whose files say it where there are windows
    found.setdefault("sliding_window", None)
  return found | {key: value for key, value in model.own.items() if value != 0}  # 0: switched off


def _special_tokens(model: _Model) -> dict[str, Any]:
  bos, pad, *ends = (
    model.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "padding", *ENDS)
  )
  return ModelIds(bos_token_id=bos, pad_token_id=pad).with_ends(*ends).as_dict()


def _scaling(model: _Model, found: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the setting of scaled rotations, if the file has one."""
  begin = "rope.scaling."
  given = {k.removeprefix(begin): model.own.pop(k) for k in [*model.own] if k.startswith(begin)}
  scaling = {_SCALING.get(key, key): value for key, value in given.items() if value != 0}
  if old := model.own.pop("rope.scale_linear", 0):
    scaling.setdefault("factor", old)
  kind, factor = scaling.setdefault("rope_type", "linear"), scaling.get("factor", 1)
  plain = kind == "linear" and factor == 1 and scaling.keys() - {"factor"} <= _UNSCALED
  if kind == "none" or plain:
    scaling = {}
  if _FREQUENCIES in model.tensors:
    scaling = _llama3(model, found, scaling)
  return {"rope_scaling": scaling} if scaling else {}


def _llama3(model: _Model, found: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the scaling of Llama 3.1 whose divisors of frequencies a file has for each pair."""
  tensor, width = model.tensors[_FREQUENCIES], found["head_dim"]
  if not other and tensor.shape == (width // 2,) and np.isfinite(divisors := tensor.read()).all():
    lengths = 2 * math.pi * found["rope_theta"] ** (np.arange(width // 2) * 2 / width)
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
    f"{model.place}: {_FREQUENCIES}{f' beside {dict(other)}' if other else ''} is not that of "
    "Llama 3.1, the only one that is read; give the folder of safetensors that it was made of"
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
