"""Whether every size divides over the devices that split it, found before data are built."""

from collections.abc import Mapping

from resjax.models.parameters import Parameter, parameters
from resjax.sharding import Layout
from resjax.train.config import Run

# Logical axis of a parameter -> its letter, and the setting that decides its size.
_PARAMETER_AXES = {
  "layers": ("L", "config.model.num_layers"),
  "embed_param": ("D", "config.model.d_model"),
  "vocab": (
    "V",
    "config.data.tokenizer.vocab_size, or keep V whole by the rule vocab=() of config.sharding",
  ),
  "heads": ("H·C or K·C", "config.model.num_heads or num_kv_heads"),
  "mlp": ("F", "config.model.mlp_dim"),
}


def check(run: Run, layout: Layout) -> None:
  """Checks a run whose vocabulary is that of its data, or as large as its tokenizer may become.

  Raises:
    ValueError: sizes that do not divide, all of them in one line.
  """
  found = [*_activations(run, layout)]
  if any(layout.num_shards(axis) > 1 for axis in _PARAMETER_AXES):
    found += failures(parameters(run.decoder, layout), layout)
  refuse(found)


def refuse(found: list[str]) -> None:
  """Raises a ValueError with all that was found, if anything was."""
  if found:
    raise ValueError("; ".join(found))


def failures(found: Mapping[str, Parameter], layout: Layout) -> list[str]:
  """Returns a line for each size of an axis of parameters that does not divide."""
  paths: dict[tuple[str, int], list[str]] = {}
  for path, parameter in found.items():
    for axis, size in zip(parameter.axes, parameter.shape, strict=True):
      if axis and size % layout.num_shards(axis):
        paths.setdefault((axis, size), []).append(path)
  lines = []
  for (axis, size), where in paths.items():
    letter, knob = _PARAMETER_AXES[axis]
    more = f" and {len(where) - 1} more" if len(where) > 1 else ""
    lines.append(_line(f"{letter}={size} of {where[0]}{more}", axis, layout) + f"; change {knob}")
  return lines


def _activations(run: Run, layout: Layout) -> list[str]:
  """Returns a line for each size of the batch and of its heads that does not divide."""
  train, model = run.train, run.decoder
  lines = []
  if train.batch_size % (layout.num_shards("batch") * train.microbatches):
    what = f"config.train.batch_size={train.batch_size}"
    times = f" × config.train.microbatches={train.microbatches}" * (train.microbatches > 1)
    lines.append(_line(what, "batch", layout, train.microbatches) + times)
  sizes = [
    ("config.data.seq_len", run.data.seq_len, "tokens"),
    ("config.model.d_model", model.d_model, "embed"),
    ("config.model.num_heads", model.num_heads, "heads"),
    ("config.model.num_kv_heads", model.num_kv_heads, "heads"),
  ]
  if model.short_swa.window:
    sizes.append(("config.model.short_swa.num_heads", model.short_swa_heads, "heads"))
  return lines + [
    _line(f"{name}={size}", axis, layout)
    for name, size, axis in sizes
    if size % layout.num_shards(axis)
  ]


def _line(what: str, axis: str, layout: Layout, times: int = 1) -> str:
  """Returns that something does not divide, and what it is divided by."""
  factors = [(name, layout.mesh.shape[name]) for name in layout.rules.axes(axis)]
  factors = " × ".join(f"config.mesh.{name}={size}" for name, size in factors)
  return f"{what} is not divisible by {layout.num_shards(axis) * times}, that is {factors}"
