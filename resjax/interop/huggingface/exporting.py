"""Decoders to folders that transformers and vLLM load."""

import json
import os
import pathlib
import tempfile
from collections.abc import Iterator

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from resjax import locations
from resjax.data.tokenizer import Tokenizer
from resjax.interop.huggingface.check import expected_shapes
from resjax.interop.huggingface.express import express
from resjax.interop.huggingface.families import Family
from resjax.interop.huggingface.files import INDEX, SINGLE
from resjax.interop.huggingface.tokenizer_files import special_ids, tokenizer_files
from resjax.models.config import DecoderConfig
from resjax.models.decoder import Decoder
from resjax.models.parameters import Parameter
from resjax.typing import Array

DTYPES = ("float32", "bfloat16", "float16")


def export(
  decoder: Decoder,
  folder: str | os.PathLike,
  *,
  tokenizer: Tokenizer | None = None,
  dtype: str = "float32",
  shard_bytes: int = 5_000_000_000,
) -> None:
  """Writes a decoder with plain residuals as a folder of Hugging Face, at once or not at all.

  config.json, generation_config.json, model.safetensors (or shards and their index), and the files
  of the tokenizer, those of a pretrained one as they were. Beside the decoder the host holds one
  shard.

  Args:
    decoder: the model; of one process.
    folder: local, not there yet, or empty.
    tokenizer: of the model; None: no files, no special tokens.
    dtype: of the tensors.
    shard_bytes: the largest file; a larger tensor has one of its own.

  Raises:
    ValueError: no family of transformers expresses the decoder, the folder is not empty, or an
      option is out of range.
  """
  if dtype not in DTYPES:
    raise ValueError(f"dtype={dtype!r} is not supported; allowed: {', '.join(DTYPES)}")
  folder = check_target(folder)
  if jax.process_count() > 1:
    raise ValueError(
      f"{jax.process_count()} processes hold the decoder; export from one of its own"
    )
  family, settings = express(decoder.config)
  ids = special_ids(tokenizer)
  settings |= {"architectures": [family.architecture], "torch_dtype": dtype, "use_cache": True}
  with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
    whole = pathlib.Path(scratch) / "whole"
    whole.mkdir()
    _write_json(whole / "config.json", settings | ids)
    _write_json(whole / "generation_config.json", {k: v for k, v in ids.items() if v is not None})
    for name, text in tokenizer_files(tokenizer).items():
      (whole / name).write_text(text, encoding="utf-8")
    _write_tensors(decoder, family, whole, np.dtype(jax.numpy.dtype(dtype)), shard_bytes)
    os.replace(whole, folder)


def check_target(folder: str | os.PathLike, knob: str = "folder") -> pathlib.Path:
  """Returns a folder as a path that `export` can write; makes its parents when missing.

  Args:
    folder: see `export`.
    knob: name of the setting that holds it, for messages.

  Raises:
    ValueError: it is there and not empty, or cannot be written.
  """
  folder = pathlib.Path(folder)
  if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
    raise ValueError(f"{folder} exists and is not an empty folder; set {knob} to another one")
  locations.make_folder(folder.parent, knob)
  return folder


def _write_tensors(decoder, family: Family, folder, dtype: np.dtype, shard_bytes: int) -> None:
  flat = nnx.to_flat_state(nnx.state(decoder))
  arrays = {"/".join(map(str, path)): variable for path, variable in flat}
  parameters = {path: Parameter.of(variable) for path, variable in arrays.items()}
  values = {path: variable[...] for path, variable in arrays.items()}
  shapes = expected_shapes(family, decoder.config, parameters)
  sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, shape in shapes.items()}
  shards = list(_shards(sizes, shard_bytes))
  where = {}
  for number, names in enumerate(shards, 1):
    file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
    tensors = {
      name: _tensor(name, shapes[name], family, decoder.config, values, dtype) for name in names
    }
    save_file(tensors, folder / file, metadata={"format": "pt"})
    where |= dict.fromkeys(names, file)
  if len(shards) > 1:
    total = {"total_size": sum(sizes.values())}
    _write_json(folder / INDEX, {"metadata": total, "weight_map": where})


def _shards(sizes: dict[str, int], limit: int) -> Iterator[list[str]]:
  """Yields the names of the tensors of each file."""
  names, size = [], 0
  for name, more in sizes.items():
    if names and size + more > limit:
      yield names
      names, size = [], 0
    names.append(name)
    size += more
  yield names


def _tensor(
  name: str,
  shape: tuple[int, ...],
  family: Family,
  config: DecoderConfig,
  values: dict[str, Array],
  dtype: np.dtype,
) -> np.ndarray:
  """Returns the tensor of a name, made of all parameters that it holds."""
  target = np.empty(shape, dtype)
  for tensor in family.tensors_of(values):
    if not tensor.stacked:
      layers = [None] if tensor.theirs == name else []
    else:
      layers = [i for i in range(config.num_layers) if tensor.theirs.format(i) == name]
    for layer in layers:
      value = values[tensor.ours] if layer is None else values[tensor.ours][layer]
      tensor.write(target, np.asarray(value), config)
  return target


def _write_json(path: pathlib.Path, values: dict) -> None:
  path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
