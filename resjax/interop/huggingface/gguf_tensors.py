"""The tensors of a GGUF file under the names, and with the values, of a Hugging Face folder."""

import dataclasses
from typing import Any

import numpy as np

from resjax.data import GgufFile, GgufTensor
from resjax.interop.huggingface.stored_tensors import StoredTensor
from resjax.interop.huggingface.tensors import Index, TensorNames
from resjax.models import DecoderConfig

# The architectures whose rotated pairs lie side by side in GGUF files, as llama.cpp rotates them.
_INTERLEAVED = ("llama", "smollm3")
_READ_AS_SETTINGS = ("rope_freqs.weight",)


@dataclasses.dataclass(frozen=True, eq=False)
class _Converted(StoredTensor):
  """A tensor of a GGUF file, dequantized when a slice of it is read.

  Attributes:
    source: the tensor.
    rows: the row there of each row; None: the same.
    offset: what was added to the values.
  """

  source: GgufTensor
  rows: np.ndarray | None
  offset: float

  def slice(self, index: Index) -> np.ndarray:
    """Returns a slice of the tensor as a folder of Hugging Face would have it, dequantized."""
    first, *others = index or (slice(None),)
    rows = first if self.rows is None else self.rows[first]
    if len(self.shape) == 1:
      return self.source.read()[rows] - np.float32(self.offset)
    return self.source.read(rows)[(slice(None), *others)]


def converted(
  content: GgufFile, family: TensorNames, config: DecoderConfig
) -> dict[str, StoredTensor]:
  """Returns the tensors by the names of a family; those it does not have keep their own names."""
  names = _names(content, family, config)
  found: dict[str, StoredTensor] = {}
  for own, tensor in content.tensors.items():
    if own not in _READ_AS_SETTINGS:
      name, offset = names.get(own, (own, 0.0))
      rows = _rows(content, own, config)
      found[name] = _Converted(tensor.file, name, tensor.shape, "F32", tensor, rows, offset)
  return found


def _names(
  content: GgufFile, family: TensorNames, config: DecoderConfig
) -> dict[str, tuple[str, float]]:
  """Returns the names of a family, and what is added to stored norms, by names in GGUF files."""
  import gguf

  numbers: dict[str, Any] = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
  table = gguf.get_tensor_name_map(numbers[content.architecture], config.num_layers)
  found = {}
  for tensor in family.tensors:
    for layer in range(config.num_layers if tensor.stacked else 1):
      base, _, ending = tensor.name.format(layer).rpartition(".")
      found[f"{table.get_name(base)}.{ending}"] = f"{base}.{ending}", tensor.offset
  return found


def _rows(content: GgufFile, name: str, config: DecoderConfig) -> np.ndarray | None:
  """Returns the rows of queries and keys that stand for both halves of each head in turn."""
  heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
  part = name.split(".")[-2:][0]
  if content.architecture not in _INTERLEAVED or part not in heads:
    return None
  rows = np.arange(heads[part] * config.head_dim)
  return rows.reshape(heads[part], -1, 2).swapaxes(1, 2).reshape(-1)
