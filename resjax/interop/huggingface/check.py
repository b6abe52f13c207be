"""Whether the tensors of a folder are those of a decoder: one table of what they are not."""

import pathlib
from collections.abc import Mapping

from resjax.interop.huggingface.families import Family
from resjax.interop.huggingface.files import Stored
from resjax.models.config import DecoderConfig
from resjax.models.parameters import Parameter

_LONGEST = 40  # lines of a table


def expected_shapes(
  family: Family, config: DecoderConfig, parameters: Mapping[str, Parameter]
) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every tensor of a decoder, by name."""
  expected = {}
  for tensor in family.tensors_of(parameters):
    shape = parameters[tensor.ours].shape
    if tensor.stacked:
      theirs = tensor.their_shape(shape[1:])
      expected |= {tensor.theirs.format(layer): theirs for layer in range(config.num_layers)}
    else:
      expected[tensor.theirs] = tensor.their_shape(shape)
  return expected


def check(
  folder: pathlib.Path,
  family: Family,
  config: DecoderConfig,
  parameters: Mapping[str, Parameter],
  stored: Mapping[str, Stored],
) -> dict[str, Stored]:
  """Returns the tensors that a decoder needs, by their full names.

  Left out are buffers, and an output embedding in a file whose config ties it to the input's.

  Raises:
    ValueError: a table of what is missing, extra, or of another shape.
  """
  expected = expected_shapes(family, config, parameters)
  heads = {tensor.theirs for tensor in family.tensors if tensor.ours == "output/embedding"}
  found = {}
  for name, tensor in stored.items():
    full = name if name in heads else _with_prefix(name, family)
    if full in expected or not (full in heads or full.endswith(family.buffers)):
      found[full] = tensor
  rows = [
    (name, expected.get(name, "nothing"), found[name].shape if name in found else "nothing")
    for name in sorted({**expected, **found})
    if name not in found or name not in expected or found[name].shape != expected[name]
  ]
  if rows:
    raise ValueError(_table(folder, rows))
  return found


def _with_prefix(name: str, family: Family) -> str:
  return name if name.startswith(family.prefix) else family.prefix + name


def _table(folder: pathlib.Path, rows: list[tuple]) -> str:
  lines = [f"{folder}: {len(rows)} tensors are not those of config.json; nothing was loaded"]
  width = max(len(name) for name, *_ in rows[:_LONGEST])
  for name, expected, found in rows[:_LONGEST]:
    lines.append(f"  {name:{width}}  expected {expected!s:16} found {found};")
  if len(rows) > _LONGEST:
    lines.append(f"  and {len(rows) - _LONGEST} more")
  return "\n".join(lines)
