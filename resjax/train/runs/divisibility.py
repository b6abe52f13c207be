"""Checks that every size divides over the devices that split it, before data are built."""

from resjax.models import SPLIT_AXES, failures, not_divisible, parameters, refuse
from resjax.train.runs.config import Run


def check(run: Run) -> None:
  """Checks a run whose vocabulary is that of its data, or as large as its tokenizer may become.

  Raises:
    ValueError: some sizes do not divide, or there are no experts to split; all that is wrong is
      named in one line.
  """
  layout, found = run.layout, _activations(run)
  if (devices := layout.mesh.shape["expert"]) > 1 and not run.decoder.moe.num_experts:
    found.append(
      f"config.mesh.expert={devices} splits experts, and config.model.moe.num_experts=0; set it to "
      f"1 and config.mesh.data to {devices * layout.mesh.shape['data']}"
    )
  if any(layout.num_shards(axis) > 1 for axis in SPLIT_AXES):
    found += failures(parameters.parameters(run.decoder, layout), layout)
  refuse(found)


def _activations(run: Run) -> list[str]:
  """Returns a line for each size of the batch and of its heads that does not divide."""
  train, model, layout = run.train, run.decoder, run.layout
  lines = []
  if train.batch_size % (layout.num_shards("batch") * train.microbatches):
    what = f"config.train.batch_size={train.batch_size}"
    times = f" × config.train.microbatches={train.microbatches}" * (train.microbatches > 1)
    lines.append(not_divisible(what, "batch", layout, train.microbatches) + times)
  sizes = [
    ("config.data.seq_len", run.data.seq_len, "tokens"),
    ("config.model.d_model", model.d_model, "embed"),
    ("config.model.num_heads", model.num_heads, "heads"),
    ("config.model.num_kv_heads", model.num_kv_heads, "heads"),
  ]
  if model.short_swa.window:
    sizes.append(("config.model.short_swa.num_heads", model.short_swa_heads, "heads"))
  return lines + [
    not_divisible(f"{name}={size}", axis, layout)
    for name, size, axis in sizes
    if size % layout.num_shards(axis)
  ]
