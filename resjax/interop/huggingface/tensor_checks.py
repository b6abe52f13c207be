"""The check that the tensors of a folder fit a decoder."""

import math
from collections.abc import Mapping

import numpy as np

from resjax.data import CONFIG, ModelFiles
from resjax.interop.huggingface.stored_tensors import StoredTensor, add
from resjax.interop.huggingface.tensors import TensorNames
from resjax.models import DecoderConfig, Parameter

_MOST_LINES = 40  # Of the list of tensors that do not fit.
_BLOCK = 1 << 22  # The number of values of a tensor that are compared at a time.
_DTYPES = ("F64", "F32", "F16", "BF16")


def check_sizes(
  files: ModelFiles, config: DecoderConfig, stored: Mapping[str, StoredTensor]
) -> None:
  """Raises ValueError if a size of a decoder is larger than its files can have.

  They bound what a config.json may claim before a decoder is traced or a table is made.
  """
  where = files.where(CONFIG)
  if config.num_layers > len(stored):
    raise ValueError(f"{where} has {config.num_layers:,} layers, its model {len(stored):,} tensors")
  values = sum(math.prod(tensor.shape) for tensor in stored.values())
  sizes = {
    "the vocabulary": config.vocab_size,
    "the width": config.d_model,
    "the width of the MLP": config.mlp_dim,
    "the width of all experts": (
      len(config.routed_layers) * config.moe.num_experts * config.expert_dim
    ),
    "the width of all heads": config.num_heads * config.head_dim,
    "the number of learned positions": config.max_positions * (config.positions == "learned"),
  }
  for name, size in sizes.items():
    if size > values:
      raise ValueError(f"{where}: {name} is {size:,}, its model has {values:,} numbers")


def expected_shapes(
  family: TensorNames, config: DecoderConfig, parameters: Mapping[str, Parameter]
) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every tensor of a decoder, by name."""
  expected: dict[str, tuple[int, ...]] = {}
  for tensor in family.tensors_of(config, parameters):
    names = tensor.names(config)
    shape = parameters[tensor.path].shape[names.ndim :]
    expected |= dict.fromkeys(names.flat, tensor.stored_shape(shape, config))
  return expected


def check_tensors(
  files: ModelFiles,
  family: TensorNames,
  config: DecoderConfig,
  parameters: Mapping[str, Parameter],
  stored: Mapping[str, StoredTensor],
) -> dict[str, StoredTensor]:
  """Returns the tensors that a decoder needs, by their full names.

  Buffers are left out, and so is the output embedding if the config ties it to the input's.

  Raises:
    ValueError: Tensors are missing, extra, or of another shape (the message is a table of them); a
      dtype is not one of floating-point numbers; or an output embedding that the config ties to
      the input's differs from it; or two tensors are one of the decoder's.
  """
  expected = expected_shapes(family, config, parameters)
  heads = {tensor.name for tensor in family.tensors if tensor.path == "output/embedding"}
  found: dict[str, StoredTensor] = {}
  for name, tensor in stored.items():
    full = name if name in heads or name.startswith(family.prefix) else family.prefix + name
    if full in expected or not (full in heads or full.endswith(family.buffers)):
      add(found, full, tensor)
  rows = [
    (name, expected.get(name, "nothing"), found[name].shape if name in found else "nothing")
    for name in sorted({**expected, **found})
    if name not in found or name not in expected or found[name].shape != expected[name]
  ]
  if rows:
    raise ValueError(_table(files, rows))
  for tensor in found.values():
    if tensor.dtype not in _DTYPES:
      allowed = ", ".join(_DTYPES)
      raise ValueError(f"{tensor.file}: {tensor.name} is {tensor.dtype}; allowed: {allowed}")
  for head in heads & stored.keys() - found.keys():
    _check_tied(stored[head], found[_embedding(family)])
  return found


def _embedding(family: TensorNames) -> str:
  return next(tensor.name for tensor in family.tensors if tensor.path == "embed/embedding")


def _check_tied(head: StoredTensor, embedding: StoredTensor) -> None:
  """Raises ValueError if both differ; transformers 4 would tie them nevertheless, 5 would not."""
  size, width = embedding.shape
  rows = max(1, _BLOCK // width)
  blocks = [(slice(i, min(i + rows, size)), slice(None)) for i in range(0, size, rows)]
  same = (np.array_equal(head.slice(block), embedding.slice(block)) for block in blocks)
  if head.shape != embedding.shape or not all(same):
    raise ValueError(
      f"{head.file}: {head.name} differs from {embedding.name}, and config.json ties them; set "
      "tie_word_embeddings to false there, or remove the tensor"
    )


def _table(files: ModelFiles, rows: list[tuple]) -> str:
  where = files.where(CONFIG)
  lines = [f"{where}: {len(rows)} tensors are not those that it describes; nothing was loaded"]
  width = max(len(name) for name, *_ in rows[:_MOST_LINES])
  for name, expected, found in rows[:_MOST_LINES]:
    lines.append(f"  {name:{width}}  expected {expected!s:16} found {found};")
  if len(rows) > _MOST_LINES:
    lines.append(f"  and {len(rows) - _MOST_LINES} more")
  return "\n".join(lines)
