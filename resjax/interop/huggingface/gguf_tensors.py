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
    heads: the number of heads whose rotated pairs lie side by side there; 0: rows are the same.
    offset: what was added to the values.
  """

  source: GgufTensor
  heads: int
  offset: float

  def slice(self, index: Index) -> np.ndarray:
    """Returns a slice of the tensor as a folder of Hugging Face would have it, dequantized."""
    first, *others = index or (slice(None),)
    rows = _rows(self.shape[0], self.heads)[first] if self.heads else first
    if len(self.shape) == 1:
      return self.source.read()[rows] - np.float32(self.offset)
    return self.source.read(rows)[(slice(None), *others)]


def converted(
  content: GgufFile, family: TensorNames, config: DecoderConfig
) -> dict[str, StoredTensor]:
  """Returns the tensors by the names of a family; those it does not have keep their own names."""
  names = _names(content, family, config)
  heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
  found: dict[str, StoredTensor] = {}
  for own, tensor in content.tensors.items():
    if own not in _READ_AS_SETTINGS:
      name, offset = names.get(own, (own, 0.0))
      part = own.split(".")[-2:][0]
      rotated = heads.get(part, 0) if content.architecture in _INTERLEAVED else 0
      found[name] = _Converted(tensor.file, name, tensor.shape, "F32", tensor, rotated, offset)
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
    for name in tensor.names(config).flat:
      base, _, ending = name.rpartition(".")
      found[f"{table.get_name(base)}.{ending}"] = f"{base}.{ending}", tensor.offset
  return found


def _rows(size: int, heads: int) -> np.ndarray:
  """Returns the row there of each row, the rows of both halves of each head in turn."""
  return np.arange(size).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
