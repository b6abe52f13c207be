"""Writes decoders as Hugging Face folders, which transformers and vLLM load."""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from safetensors import SafetensorError
from safetensors.numpy import save_file

from resjax.base import Array, locations
from resjax.data import GENERATION, Tokenizer
from resjax.interop.huggingface import remote_code
from resjax.interop.huggingface.families import FAMILIES, Family
from resjax.interop.huggingface.model_card import model_card
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.stored_tensors import INDEX, SINGLE
from resjax.interop.huggingface.tensor_checks import expected_shapes
from resjax.interop.huggingface.tensors import Tensor, TensorNames
from resjax.interop.huggingface.tokenizer_files import (
  generation_settings,
  special_ids,
  tokenizer_files,
)
from resjax.models import Decoder, DecoderConfig, Parameter
from resjax.nn import Rope

DTYPES = ("float32", "bfloat16", "float16")
SERVERS = ("", "vllm")

# The options that do not decide which function a trained decoder computes, and those that decide
# it only together with rotary positions.
_FREE = ("dtype", "attention", "remat", "depth", "init_std", "scaled_output_init")
_ROPE = ("rope_theta", "rope_fraction", "rope_scaling", "ropes")
_Source = tuple[Tensor, tuple[int, ...]]  # a tensor of a table, and the place in its parameter
_OF_VALUES = ("value_gate", "depth_values")  # options of what no family has


def export(
  decoder: Decoder,
  folder: str | os.PathLike,
  *,
  tokenizer: Tokenizer | None = None,
  dtype: str = "float32",
  shard_bytes: int = 5_000_000_000,
  with_code: bool | None = None,
  server: str = "",
  facts: Mapping[str, object] | None = None,
) -> None:
  """Writes a decoder as a Hugging Face folder, as a whole or not at all.

  The folder holds config.json, generation_config.json, model.safetensors (or shards and their
  index), a model card, and the files of the tokenizer; files of a pretrained one are left
  unchanged. Where no family of transformers computes what the decoder does, it holds the source of
  a model that does, which transformers runs with trust_remote_code=True. Beside the decoder the
  host holds one shard.

  Args:
    decoder: the model, all of which this process must hold.
    folder: a local folder that is empty or does not exist.
    tokenizer: the tokenizer of the model; None writes no files and no special tokens.
    dtype: the dtype of the tensors.
    shard_bytes: the size of the largest file; a larger tensor gets a file of its own.
    with_code: whether the folder holds the source of its model; None: where it has to.
    server: a server that has to be able to serve the folder, one of `SERVERS`.
    facts: what the model card says of the training, by name.

  Raises:
    ValueError: Neither a family of transformers nor such a source expresses the decoder, the server
      would compute something else, the folder is not empty, or an option is out of range.
  """
  if dtype not in DTYPES:
    raise ValueError(f"dtype={dtype!r} is not supported; allowed: {', '.join(DTYPES)}")
  folder = check_target(folder)
  if jax.process_count() > 1:
    raise ValueError(
      f"{jax.process_count()} processes hold the decoder; export from one of its own"
    )
  form = find_form(decoder.config, with_code, server)
  ids = special_ids(tokenizer)
  with (
    locations.writing(folder),
    _partial(folder) as whole,
  ):
    _write_json(whole / "config.json", form.settings | {"torch_dtype": dtype} | ids)
    _write_json(whole / GENERATION, generation_settings(tokenizer))
    for name, text in {**form.files, **tokenizer_files(tokenizer)}.items():
      (whole / name).write_text(text, encoding="utf-8")
    kind = np.dtype(jax.numpy.dtype(dtype))
    count = _write_tensors(decoder, form.names, whole, kind, shard_bytes)
    code = next((name for name in form.files if name.startswith("modeling")), "")
    card = model_card(
      decoder.config, facts or {}, code, count, dtype, has_tokenizer=tokenizer is not None
    )
    (whole / "README.md").write_text(card, encoding="utf-8")
    os.replace(whole, folder)


@contextlib.contextmanager
def _partial(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives an empty folder beside another one; leftovers of a killed export are removed."""
  partial = folder.parent / f".{folder.name}.partial"
  locations.remove(partial)
  try:
    partial.mkdir()
    yield partial
  finally:
    locations.remove(partial)


class Form(NamedTuple):
  """In which form a decoder is written.

  Attributes:
    architecture: the class of the model.
    names: the names of the tensors.
    settings: what config.json says of the decoder.
    files: the source texts of the model; empty for those that transformers has.
  """

  architecture: str
  names: TensorNames
  settings: dict[str, Any]
  files: dict[str, str]


def find_form(config: DecoderConfig, with_code: bool | None = None, server: str = "") -> Form:
  """Returns the form in which a decoder is written: that of a family, or with code of its own.

  Args:
    config: of the decoder.
    with_code: whether the folder holds the source of its model; None: where no family expresses it.
    server: one of `SERVERS`, which has to be able to serve the folder.

  Raises:
    ValueError: The form does not express the decoder, or the server would compute something else;
      the message names the options in the way.
  """
  if server not in SERVERS:
    raise ValueError(f"server={server!r} is not known; allowed: {', '.join(map(repr, SERVERS))}")
  if not with_code:
    try:
      family, settings = find_family(config)
    except ValueError as error:
      if with_code is not None:
        raise ValueError(
          f"{error}; a folder with code of its own expresses more: leave out with_code=False "
          "(--nowith_code)"
        ) from None
      if found := remote_code.obstacles(config):
        raise ValueError(f"{error}; in the way of code of its own: {'; '.join(found)}") from None
    else:
      if server and (found := _obstacles(family, {**settings, **family.fixed_by_vllm}, config)):
        raise ValueError(
          f"vLLM's own {family.architecture} cannot serve this decoder: {'; '.join(found)}; a "
          "folder with code of its own keeps that: with_code=True (--with_code)"
        )
      settings |= {"architectures": [family.architecture], "use_cache": True}
      return Form(family.architecture, family, settings, {})
  settings = remote_code.settings(config)
  if server and (found := remote_code.vllm_obstacles(config)):
    raise ValueError(f"vLLM cannot serve this decoder: {'; '.join(found)}")
  files = remote_code.files(config.residual.name, remote_code.parts(config))
  return Form(settings["architectures"][0], remote_code.RemoteNames(), settings, files)


def find_family(config: DecoderConfig) -> tuple[Family, dict[str, Any]]:
  """Returns the family that expresses a decoder, and the settings of its config.json.

  A family expresses a decoder if the settings that it writes, read again, give the same function.

  Raises:
    ValueError: No family expresses the decoder; the message names the options that differ.
  """
  found, routes = {}, bool(config.routed_layers)
  for family in (family for family in FAMILIES.values() if family.routes == routes):
    settings = {"model_type": family.model_type, **family.write(config)}
    obstacles = _obstacles(family, settings, config)
    if not obstacles:
      return family, settings | {"initializer_range": config.init_std}
    found[family.model_type] = obstacles
  nearest = min(found, key=lambda name: len(found[name]))
  raise ValueError(
    f"no family that transformers knows expresses this decoder; in the way of the nearest, "
    f"{nearest}: {'; '.join(found[nearest])}"
  )


def _obstacles(family: Family, settings: dict[str, Any], config: DecoderConfig) -> list[str]:
  """Returns a phrase for each option of a decoder that a family does not express."""
  lines = []
  if family.whole_heads and config.d_model % config.num_heads:
    lines.append(
      f"config.model.num_heads={config.num_heads} must divide config.model.d_model={config.d_model}"
    )
  try:
    back = family.decoder_config(Settings(settings, "config.json"))
  except ValueError as error:
    return [*lines, str(error)]
  ours, theirs = _function(config), _function(back)
  return lines + [
    f"config.model.{name}={ours[name]!r}, there {theirs[name]!r}"
    for name in ours
    if name in theirs and ours[name] != theirs[name]
  ]


def _function(config: DecoderConfig) -> dict[str, Any]:
  """Returns the options that decide which function a decoder computes, each in one spelling."""
  fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
  without = _FREE + _OF_VALUES + ("moe",) + (_ROPE if config.positions == "learned" else ())
  chosen = {name: value for name, value in fields.items() if name not in without}
  chosen["residual"] = config.residual.name
  chosen |= _experts(config)
  chosen["short_swa"] = config.short_swa.window
  chosen["windows"] = config.layer_windows
  chosen["query_pre_attn_scalar"] = config.query_pre_attn_scalar or float(config.head_dim)
  return chosen | (_rotations(config) if config.positions == "rope" else {})


def _experts(config: DecoderConfig) -> dict[str, Any]:
  """Returns the options that decide what experts and MLPs beside them are, in one spelling."""
  if not config.routed_layers:
    return {}
  moe = dataclasses.asdict(config.moe)
  del moe["first_dense"], moe["every"]
  moe |= {"expert_dim": config.expert_dim, "routed_layers": config.routed_layers}
  mlp_dim = config.mlp_dim if config.dense_layers else config.expert_dim
  return {"mlp_dim": mlp_dim} | {f"moe.{name}": value for name, value in moe.items()}


def _rotations(config: DecoderConfig) -> dict[str, Any]:
  """Returns the options that decide the rotations of layers, each in one spelling."""
  if len(set(config.layer_ropes)) > 1:
    ropes = tuple(rope and (rope.theta, rope.scaling) for rope in config.layer_ropes)
    return {"rope_theta": None, "rope_scaling": None, "ropes": ropes}
  rope = config.layer_ropes[0] or Rope(0.0)
  scaling: Any = rope.scaling
  if scaling.kind in ("none", "linear"):
    scaling = scaling.kind, 1.0 if scaling.kind == "none" else scaling.factor
  return {"rope_theta": rope.theta, "rope_scaling": scaling, "ropes": ()}


def check_target(folder: str | os.PathLike, setting: str = "folder") -> pathlib.Path:
  """Returns the path of a folder that `export` can write, and makes its missing parents.

  Messages name the `setting` that holds the folder.

  Raises:
    ValueError: The folder is not local, not empty, a link, or cannot be written.
  """
  if not locations.is_local(os.fspath(folder)):
    raise ValueError(f"{folder} is no local folder; set {setting} to one, and copy it there")
  folder = pathlib.Path(folder)
  if folder.is_symlink():
    raise ValueError(f"{folder} is a link; set {setting} to the folder itself")
  if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
    raise ValueError(f"{folder} exists and is not an empty folder; set {setting} to another one")
  locations.make_folder(folder.parent, setting)
  return folder


def _write_tensors(
  decoder: Decoder, family: TensorNames, folder: pathlib.Path, dtype: np.dtype, shard_bytes: int
) -> int:
  """Writes the tensors, and returns how many numbers they hold."""
  flat = nnx.to_flat_state(nnx.state(decoder))
  arrays = {"/".join(map(str, path)): variable for path, variable in flat}
  parameters = {path: Parameter.of(variable) for path, variable in arrays.items()}
  values = {path: variable[...] for path, variable in arrays.items()}
  parameters, values = (remote_code.apart(decoder.config, each) for each in (parameters, values))
  shapes = expected_shapes(family, decoder.config, parameters)
  sources = _sources(family, decoder.config, values)
  sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, shape in shapes.items()}
  shards = list(_shards(sizes, shard_bytes))
  where: dict[str, str] = {}
  for number, names in enumerate(shards, 1):
    file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
    tensors = {
      name: _tensor(name, shapes[name], sources[name], decoder.config, values, dtype)
      for name in names
    }
    try:
      save_file(tensors, folder / file, metadata={"format": "pt"})
    except SafetensorError as error:  # it has the cause as text alone
      raise OSError(str(error)) from error
    (folder / file).chmod((folder / "config.json").stat().st_mode)  # else the owner alone reads it
    where |= dict.fromkeys(names, file)
  if len(shards) > 1:
    total = {"total_size": sum(sizes.values())}
    _write_json(folder / INDEX, {"metadata": total, "weight_map": where})
  return sum(sizes.values()) // dtype.itemsize


def _shards(sizes: dict[str, int], limit: int) -> Iterator[list[str]]:
  """Yields the names of the tensors of each file."""
  names: list[str] = []
  size = 0
  for name, more in sizes.items():
    if names and size + more > limit:
      yield names
      names, size = [], 0
    names.append(name)
    size += more
  yield names


def _sources(
  family: TensorNames, config: DecoderConfig, values: Mapping[str, Any]
) -> dict[str, list[_Source]]:
  """Returns the parameters that each tensor holds, and where it has them from, by its name."""
  found: dict[str, list[_Source]] = {}
  for tensor in family.tensors_of(config, values):
    for index, name in np.ndenumerate(tensor.names(config)):
      found.setdefault(name, []).append((tensor, index))
  return found


def _tensor(
  name: str,
  shape: tuple[int, ...],
  sources: Sequence[_Source],
  config: DecoderConfig,
  values: dict[str, Array],
  dtype: np.dtype,
) -> np.ndarray:
  """Returns the tensor called `name`, made of all parameters that it holds."""
  target = np.empty(shape, dtype)
  whole: np.ndarray | None = None
  for tensor, index in sources:
    own = np.asarray(values[tensor.path][index])
    if whole is not None and not np.array_equal(whole, own):
      raise ValueError(
        f"{tensor.path} differs from the parameter with which it shares the tensor {name}; "
        "keep such parameters equal in training, or set config.model.parallel=False"
      )
    whole = own if tensor.part is None else None
    tensor.write(target, own, config)
  return target


def _write_json(path: pathlib.Path, values: dict) -> None:
  path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
