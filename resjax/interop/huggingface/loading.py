"""Parameters from files to where they belong, one tensor at a time."""

import functools
import os
import pathlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Sharding, SingleDeviceSharding

from resjax.interop.huggingface.check import check
from resjax.interop.huggingface.families import FAMILIES, Family
from resjax.interop.huggingface.files import Stored, read_json, stored_tensors
from resjax.interop.huggingface.settings import Settings
from resjax.interop.huggingface.tensors import Tensor
from resjax.models.config import DecoderConfig
from resjax.models.decoder import Decoder
from resjax.models.parameters import Parameter, failures, refuse
from resjax.sharding import Layout
from resjax.typing import Array

Folder = str | os.PathLike


def read_config(folder: Folder, *, dtype: str = "float32") -> DecoderConfig:
  """Returns the decoder that the config.json of a folder describes.

  Args:
    folder: local, as `save_pretrained` of transformers writes it.
    dtype: of the activations.

  Raises:
    ValueError: no config.json, another architecture, or a setting that the decoder does not have.
  """
  return _family_and_config(pathlib.Path(folder), dtype)[1]


def load(
  folder: Folder,
  *,
  layout: Layout | None = None,
  dtype: str = "auto",
  param_dtype: jax.typing.DTypeLike = "float32",
) -> Decoder:
  """Returns the decoder of a folder, each device's share of its parameters read straight to it.

  At any time the host holds one tensor besides what the devices hold. Nothing is read before all
  names and shapes are known to fit.

  Args:
    folder: local, with config.json and model.safetensors, or shards and their index.
    layout: mesh and rules; default: the first device.
    dtype: of the activations; auto: float32 on CPU, else bfloat16.
    param_dtype: of the parameters.

  Raises:
    ValueError: as in `read_config`; sizes that do not divide over the devices; damaged files; a
      table of the tensors that are missing, extra or of another shape.
  """
  folder, layout = pathlib.Path(folder), Layout() if layout is None else layout
  if dtype == "auto":
    dtype = "float32" if layout.platform == "cpu" else "bfloat16"
  family, config = _family_and_config(folder, dtype)
  model = nnx.eval_shape(lambda: Decoder(config, layout=layout, rngs=nnx.Rngs(0)))
  graphdef, template = nnx.split(model)
  parameters = {
    "/".join(map(str, path)): Parameter.of(variable)
    for path, variable in nnx.to_flat_state(template)
  }
  refuse(failures(parameters, layout))
  tensors = family.tensors_of(parameters)
  stored = check(folder, family, config, parameters, stored_tensors(folder))
  loaded = {
    tensor.ours: _parameter(tensor, parameters[tensor.ours], stored, config, layout, param_dtype)
    for tensor in tensors
  }
  nnx.replace_by_pure_dict(template, nnx.traversals.unflatten_mapping(loaded, sep="/"))
  return nnx.merge(graphdef, template)


def _family_and_config(folder: pathlib.Path, dtype: str) -> tuple[Family, DecoderConfig]:
  values = read_json(folder / "config.json")
  where, kind = str(folder / "config.json"), values.get("model_type")
  if kind not in FAMILIES:
    raise ValueError(
      f"{where}: model_type={kind!r} is not supported; allowed: {', '.join(FAMILIES)}"
    )
  family = FAMILIES[kind]
  for name in values.get("architectures") or []:
    if name != family.architecture:
      raise ValueError(
        f"{where}: architecture {name!r} is not supported; allowed: "
        f"{', '.join(other.architecture for other in FAMILIES.values())}"
      )
  return family, family.decoder_config(Settings(values, where), dtype)


def _parameter(
  tensor: Tensor,
  parameter: Parameter,
  stored: Mapping[str, Stored],
  config: DecoderConfig,
  layout: Layout,
  dtype: jax.typing.DTypeLike,
) -> Array:
  """Returns one parameter, of all layers if it is stacked."""
  if not tensor.stacked:
    part = _read(tensor, tensor.theirs, parameter.shape, parameter.axes, stored, config, layout)
    return _finished(part, tensor.offset, dtype)
  shape, axes = parameter.shape[1:], parameter.axes[1:]
  whole = _sharding(layout, parameter.axes)
  stack = jax.jit(functools.partial(jnp.zeros, parameter.shape, dtype), out_shardings=whole)()
  for layer in range(config.num_layers):
    name = tensor.theirs.format(layer)
    part = _read(tensor, name, shape, axes, stored, config, layout)
    # Waited for: else the tensors of many layers would be in memory at one time.
    stack = jax.block_until_ready(_with_layer(stack, part, layer, tensor.offset))
  return stack


def _read(tensor, name, shape, axes, stored, config, layout) -> Array:
  """Returns the parameter of one layer, in the dtype of its file."""
  return jax.make_array_from_callback(
    shape,
    _sharding(layout, axes),
    lambda index: tensor.read(stored[name].slice, shape, index, config),
  )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _finished(part: Array, offset: float, dtype: jax.typing.DTypeLike) -> Array:
  return (part.astype(jnp.float32) + offset).astype(dtype) if offset else part.astype(dtype)


@functools.partial(jax.jit, donate_argnums=0, static_argnums=3)
def _with_layer(stack: Array, part: Array, layer: int, offset: float) -> Array:
  part = _finished(part, offset, stack.dtype)
  return jax.lax.dynamic_update_index_in_dim(stack, part, layer, axis=0)


def _sharding(layout: Layout, axes: tuple[str | None, ...]) -> Sharding:
  return layout.sharding(*axes) or SingleDeviceSharding(jax.local_devices()[0])
