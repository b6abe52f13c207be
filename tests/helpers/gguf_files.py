"""GGUF files of golden models, written by the library gguf as llama.cpp's converter writes them."""

import json

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.helpers.pretrained import GOLDEN

# Folder -> architecture in GGUF.
ARCHITECTURES = {
  "llama": "llama", "llama3": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "smollm3": "smollm3",
  "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3",
}  # fmt: skip
F32 = gguf.GGMLQuantizationType.F32
WORDS = ("the", "depth", "of", "a", "layer", "and", "width", "stream")


def settings(name):
  """What config.json of a golden model says, without the windows that no converter writes."""
  found = json.loads((GOLDEN / name / "config.json").read_text())
  if name in ("qwen2", "smollm3"):
    found |= {"use_sliding_window": False, "sliding_window": None, "layer_types": None}
  if name == "smollm3":
    found |= {"no_rope_layers": None, "no_rope_layer_interval": 4}
  return found


def tensors(name):
  """The tensors of a golden model."""
  found = sorted((GOLDEN / name).glob("*.safetensors"))
  return {key: value for file in found for key, value in load_file(file).items()}


def write(path, name, config=None, weights=None, kind=F32, without=(), words="llama", **more):
  """Writes a golden model.

  Args:
    path: the file.
    name: the folder of the model.
    config: what its config.json says.
    weights: its tensors by their names in the folder.
    kind: the type of its matrices, or a function of their names there that returns one.
    without: names of keys that are left out.
    words: "llama" or "gpt2": the tokenizer; None: there is none.
    **more: further keys, with __ in place of dots.
  """
  arch, c = ARCHITECTURES[name], config or settings(name)
  weights = tensors(name) if weights is None else weights
  writer = gguf.GGUFWriter(str(path), arch)
  if words:
    (_sentencepiece if words == "llama" else _byte_level)(writer, c["vocab_size"])
  heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
  width = c.get("head_dim") or c["hidden_size"] // heads
  writer.add_context_length(c["max_position_embeddings"])
  writer.add_embedding_length(c["hidden_size"])
  writer.add_block_count(c["num_hidden_layers"])
  writer.add_feed_forward_length(c["intermediate_size"])
  writer.add_head_count(heads)
  writer.add_head_count_kv(kv_heads)
  writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
  writer.add_key_length(width)
  writer.add_value_length(width)
  if arch == "llama":
    writer.add_rope_dimension_count(width)
    writer.add_vocab_size(c["vocab_size"])
  _rope(writer, c, width)
  for key in ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window"):
    if c.get(key):
      getattr(writer, f"add_{key}")(c[key])
  if scalar := c.get("query_pre_attn_scalar"):
    writer.add_attention_scale(scalar**-0.5)
  if arch == "gemma3":
    writer.add_sliding_window_pattern([k == "sliding_attention" for k in c["layer_types"]])
  for key, value in more.items():
    _add(writer, key.replace("__", "."), value)
  for table in writer.kv_data:
    for key in without:
      table.pop(key, None)
  names = gguf.get_tensor_name_map(_number(arch), c["num_hidden_layers"])
  for key, value in weights.items():
    base, _, ending = key.rpartition(".")
    converted = _converted(arch, key, value.astype(np.float32), heads, kv_heads)
    chosen = (kind(key) if callable(kind) else kind) if value.ndim > 1 else F32
    raw = gguf.quantize(converted, chosen)
    writer.add_tensor(f"{names.get_name(base)}.{ending}", raw, raw_dtype=chosen)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def _number(arch):
  return next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)


def _add(writer, key, value):
  adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
  adders |= {str: writer.add_string, list: writer.add_array}
  adders[type(value)](key, value)


def _converted(arch, key, value, heads, kv_heads):
  """What the converter changes: order of rotated rows, and norms of Gemma."""
  rotated = {"q_proj": heads, "k_proj": kv_heads}.get(key.split(".")[-2])
  if arch in ("llama", "smollm3") and rotated:
    halves = value.reshape(rotated, 2, -1, *value.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)
  return value + 1 if arch.startswith("gemma") and "norm" in key else value


def _rope(writer, c, width):
  ropes = c["rope_parameters"]
  if "full_attention" in ropes:
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    ropes = ropes["full_attention"]
  writer.add_rope_freq_base(ropes["rope_theta"])
  kind = ropes["rope_type"]
  if kind in ("linear", "yarn"):
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.add_rope_scaling_factor(ropes["factor"])
  if kind == "yarn":
    writer.add_rope_scaling_orig_ctx_len(ropes["original_max_position_embeddings"])
  if kind == "llama3":
    waves = 2 * np.pi * ropes["rope_theta"] ** (np.arange(0, width, 2) / width)
    low, high = ropes["low_freq_factor"], ropes["high_freq_factor"]
    smooth = (ropes["original_max_position_embeddings"] / waves - low) / (high - low)
    smooth = np.clip(smooth, 0, 1)
    divisors = 1 / ((1 - smooth) / ropes["factor"] + smooth)
    writer.add_tensor("rope_freqs.weight", divisors.astype(np.float32))


def _sentencepiece(writer, size):
  """Words that begin with a space, and all that they are merged of."""
  words = sorted({f"▁{word}" for word in WORDS})
  letters = sorted(set("".join(words)))
  parts = [word[:end] for word in words for end in range(2, len(word) + 1)]
  tokens = ["<s>", "</s>", "<unk>", "<img>", *letters, *dict.fromkeys(parts)]
  tokens = tokens[: size - 1] + [f"<pad{i}>" for i in range(max(1, size - len(tokens)))]
  kinds = [3, 3, 2, 4] + [1 if not t.startswith("<pad") else 5 for t in tokens[4:]]
  writer.add_tokenizer_model("llama")
  writer.add_token_list(tokens)
  writer.add_token_scores([-float(i) for i in range(len(tokens))])
  writer.add_token_types(kinds)
  _special(writer)


def _byte_level(writer, size):
  """Bytes that words are spelled by, and some merges."""
  letters = sorted(set("".join(WORDS)) | {"Ġ", "0", "1", "!"})
  merges = ["t h", "th e", "Ġ the", "o f", "Ġ of", "d e"]
  tokens = ["<s>", "</s>", "<unk>", "<img>", *letters, *(m.replace(" ", "") for m in merges)]
  tokens += [f"<pad{i}>" for i in range(size - len(tokens))]
  writer.add_tokenizer_model("gpt2")
  writer.add_tokenizer_pre("smollm")
  writer.add_token_list(tokens)
  writer.add_token_types([3, 3, 3, 4] + [1] * (len(tokens) - 4))
  writer.add_token_merges(merges)
  _special(writer)


def _special(writer):
  writer.add_bos_token_id(0)
  writer.add_eos_token_id(1)
  writer.add_unk_token_id(2)
