"""Loads decoders from Hugging Face folders, one tensor at a time, straight to the devices."""

import functools
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Sharding, SingleDeviceSharding

from resjax.base import Array
from resjax.base.sharding import Layout
from resjax.data import CONFIG, ModelFiles, Named, OfGguf, model_files
from resjax.interop.huggingface import remote_code
from resjax.interop.huggingface.families import FAMILIES
from resjax.interop.huggingface.gguf_tensors import converted
from resjax.interop.huggingface.settings import Settings, reasons
from resjax.interop.huggingface.stored_tensors import (
  StoredTensor,
  has_tensors,
  stored_tensors,
  text_tensors,
)
from resjax.interop.huggingface.tensor_checks import check_sizes, check_tensors
from resjax.interop.huggingface.tensors import Index, Tensor, TensorNames
from resjax.models import Decoder, DecoderConfig, Parameter, failures, refuse


def read_config(
  named: Named, *, dtype: str = "float32", ignore: Collection[str] = ()
) -> DecoderConfig:
  """Returns the config of the decoder that the config.json of a pretrained model describes.

  Args:
    named: a local folder, as `save_pretrained` of transformers writes it; or a GGUF file or a model
      on the hub, see `resjax.data.model_files.find`.
    dtype: the dtype of the activations.
    ignore: the names of settings that are not known and that the caller knows to be harmless.

  Raises:
    ValueError: There is no config.json, or the decoder does not support its architecture or one of
      its settings; or tensors are there, which are too few for its sizes.
  """
  files = model_files.find(named)
  family, config = _family_and_config(files, dtype, ignore)
  if has_tensors(files):
    check_sizes(files, config, _stored(files, family, config))
  return config


def load(
  named: Named,
  *,
  layout: Layout | None = None,
  dtype: str = "auto",
  param_dtype: jax.typing.DTypeLike = "float32",
  ignore: Collection[str] = (),
) -> Decoder:
  """Returns the decoder of a pretrained model; every device reads its own share of the parameters.

  The host holds one tensor at a time, of experts one matrix of all of a layer. Nothing is read
  before all names and shapes are known to fit.

  Args:
    named: a local folder with config.json and model.safetensors, or shards and their index; or a
      GGUF file or a model on the hub, see `resjax.data.model_files.find`.
    layout: the mesh and its rules; None uses the first device.
    dtype: the dtype of the activations; `auto` is float32 on CPUs and bfloat16 elsewhere.
    param_dtype: the dtype of the parameters.
    ignore: see `read_config`.

  Raises:
    ValueError: See `read_config`; also if sizes do not divide over the devices, a file is damaged,
      or tensors are missing, extra or of another shape (the message is a table of them).
  """
  files, layout = model_files.find(named), layout or Layout()
  if dtype == "auto":
    dtype = "float32" if layout.platform == "cpu" else "bfloat16"
  family, config = _family_and_config(files, dtype, ignore)
  in_files = _stored(files, family, config)
  check_sizes(files, config, in_files)
  family = family.as_stored(in_files)
  model = nnx.eval_shape(lambda: Decoder(config, layout=layout, rngs=nnx.Rngs(0)))
  graphdef, template = nnx.split(model)
  parameters = {
    "/".join(map(str, path)): Parameter.of(variable)
    for path, variable in nnx.to_flat_state(template)
  }
  refuse(failures(parameters, layout))
  parts = remote_code.apart(config, parameters)
  stored = check_tensors(files, family, config, parts, in_files)
  loaded = {
    tensor.path: _parameter(tensor, parts[tensor.path], stored, config, layout, param_dtype)
    for tensor in family.tensors_of(config, parts)
  }
  loaded = remote_code.together(config, loaded, parameters)
  nnx.replace_by_pure_dict(template, nnx.traversals.unflatten_mapping(loaded, sep="/"))
  return nnx.merge(graphdef, template)


def _stored(
  files: ModelFiles, family: TensorNames, config: DecoderConfig
) -> dict[str, StoredTensor]:
  if isinstance(files, OfGguf):
    return converted(files.content, family, config)
  found = stored_tensors(files)
  return text_tensors(found) if family.nested else found


def _family_and_config(
  files: ModelFiles, dtype: str, ignore: Collection[str]
) -> tuple[TensorNames, DecoderConfig]:
  values = files.json(CONFIG, dict[str, Any])
  where, kind = files.where(CONFIG), values.get("model_type")
  if str(kind).startswith(remote_code.MODEL_TYPE):
    return remote_code.RemoteNames(), remote_code.read_settings(values, where, dtype)
  settings = Settings(values, where, ignore)
  nested = {family.nested[0]: family for family in FAMILIES.values() if family.nested}
  known = FAMILIES | nested
  if kind not in known:
    raise ValueError(
      f"{where}: model_type={kind!r} is not supported{reasons(values)}; allowed: {', '.join(known)}"
    )
  family = known[kind]
  architecture = family.nested[1] if family.nested and kind in nested else family.architecture
  for name in values.get("architectures") or []:
    if name != architecture:
      raise ValueError(
        f"{where}: architecture {name!r} is not supported; allowed: "
        f"{', '.join(other.architecture for other in FAMILIES.values())}"
      )
  if kind in nested:
    settings = settings.of_text()
  try:
    return family, family.decoder_config(settings, dtype)
  except ValueError as error:  # some of them name the settings of a decoder alone
    raise error if where in str(error) else ValueError(f"{where}: {error}") from None


def _parameter(
  tensor: Tensor,
  parameter: Parameter,
  stored: Mapping[str, StoredTensor],
  config: DecoderConfig,
  layout: Layout,
  dtype: jax.typing.DTypeLike,
) -> Array:
  """Returns one parameter, stacked over all layers that have it if it is one of layers."""
  names = tensor.names(config)
  if not tensor.stacked:
    part = _read(tensor, names, parameter.shape, parameter.axes, stored, config, layout)
    return _finished(part, tensor.offset, dtype)
  shape, axes = parameter.shape[1:], parameter.axes[1:]
  whole = _sharding(layout, parameter.axes)
  stack = _zeros(parameter.shape, dtype, whole)
  for row in range(len(names)):
    part = _read(tensor, names[row, ...], shape, axes, stored, config, layout)
    # Waits for the copy: otherwise the tensors of many layers would be in memory at one time.
    stack = jax.block_until_ready(_with_row(stack, part, row, tensor.offset))
  return stack


def _read(
  tensor: Tensor,
  names: np.ndarray,
  shape: tuple[int, ...],
  axes: tuple[str | None, ...],
  stored: Mapping[str, StoredTensor],
  config: DecoderConfig,
  layout: Layout,
) -> Array:
  """Returns the parameter of one layer, in the dtype of its file.

  A device reads those tensors alone of which it has a part.

  Args:
    tensor: where files have the parameter.
    names: the names of its tensors, [] or those of experts [E].
    shape: its shape.
    axes: the logical axes of its axes.
    stored: the tensors in files, by name.
    config: of the decoder.
    layout: the mesh and its rules.
  """

  def read(index: Index | None) -> np.ndarray:
    index = index or ()
    leading: Any = (*index[: names.ndim], ...)
    rest = index[names.ndim :]
    parts = [
      tensor.read(stored[name].slice, shape[names.ndim :], rest, config)
      for name in names[leading].flat
    ]
    return np.stack(parts) if names.ndim else parts[0]

  return jax.make_array_from_callback(shape, _sharding(layout, axes), read)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _finished(part: Array, offset: float, dtype: jax.typing.DTypeLike) -> Array:
  return (part.astype(jnp.float32) + offset).astype(dtype) if offset else part.astype(dtype)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _zeros(shape: tuple[int, ...], dtype: jax.typing.DTypeLike, sharding: Sharding) -> Array:
  return jax.lax.with_sharding_constraint(jnp.zeros(shape, dtype), sharding)


@functools.partial(jax.jit, donate_argnums=0, static_argnums=3)
def _with_row(stack: Array, part: Array, row: int, offset: float) -> Array:
  part = _finished(part, offset, stack.dtype)
  return jax.lax.dynamic_update_index_in_dim(stack, part, row, axis=0)


def _sharding(layout: Layout, axes: tuple[str | None, ...]) -> Sharding:
  return layout.sharding(*axes) or SingleDeviceSharding(jax.local_devices()[0])
