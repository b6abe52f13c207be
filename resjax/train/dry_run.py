"""Shows what a run would do, without building data, arrays or files."""

import math

import jax
from rich.console import Console

from resjax.base import PyTree, terminal
from resjax.data import source_check
from resjax.study import config_tree
from resjax.train import program, run_tables
from resjax.train.runs.config import Run


def dry_run(run: Run, console: Console | None = None) -> None:
  """Prints settings, parameters with shardings, costs, bytes per device, rows, and sources of data.

  The vocabulary is the largest that the tokenizer may have. Nothing is written, built or compiled.
  """
  console = console or terminal.console()
  planned = program.build(run)
  settings = config_tree.flat(run.resolved)
  lines = [f"config.{key} = {settings[key]!r}" for key in config_tree.in_use(run.resolved)]
  console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
  run_tables.show_model(planned.model, run, run_tables.model_costs(planned.model, run), console)
  run_tables.show_compiler_options(run, console)
  _show_step(run, planned, console)
  _show_sources(run, console)


def bytes_per_device(tree: PyTree) -> int:
  """Returns the number of bytes that abstract arrays with shardings take on each device."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


def rows_per_process(rows: jax.ShapeDtypeStruct) -> dict[int, list[tuple[int, int]]]:
  """Returns the ranges [first, end) of rows of an abstract batch that each process holds."""
  found: dict[int, set[tuple[int, int]]] = {}
  for device, index in rows.sharding.devices_indices_map(rows.shape).items():
    found.setdefault(device.process_index, set()).add(index[0].indices(rows.shape[0])[:2])
  return {process: _joined(sorted(ranges)) for process, ranges in sorted(found.items())}


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
  """Returns sorted ranges with those joined that follow each other without a gap."""
  joined = ranges[:1]
  for first, end in ranges[1:]:
    if first == joined[-1][1]:
      joined[-1] = joined[-1][0], end
    else:
      joined.append((first, end))
  return joined


def _show_step(run: Run, planned: program.Program, console: Console) -> None:
  state, batch = planned.state, planned.batch
  parts = {
    "parameters": state.params,
    "gradients": state.params,  # of the same dtypes and shardings
    "optimizer": state.opt_state,
    "batch": batch,
  }
  numbers = "bytes", "of all devices' distinct"
  table = terminal.Table("what", numbers=numbers, title="bytes per device")
  for name, tree in parts.items():
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    table.add_row(name, f"{bytes_per_device(tree):,}", f"{whole:,}")
  total = sum(bytes_per_device(tree) for tree in parts.values())
  table.add_row("total", f"{total:,}", "")
  console.print(table)
  tokens = run.train.batch_size * run.data.seq_len
  flops = tokens * run_tables.model_costs(planned.model, run)["training_flops_per_token"]
  mesh = run.layout.mesh
  shape = " × ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
  lines = [
    f"{mesh.size} devices: {shape}; activations and temporaries come on top, resjax aot tells them",
    f"{flops / 1e12:,.3f} TFLOP per step of {tokens:,} tokens, "
    f"{flops / mesh.size / 1e12:,.3f} per device",
    f"vocabulary {run.decoder.vocab_size:,}" + _vocabulary_note(run),
  ]
  for process, ranges in rows_per_process(batch["inputs"]).items():
    rows = ", ".join(f"{first}..{end - 1}" for first, end in ranges)
    lines.append(f"process {process}: rows {rows} of the first {run.train.batch_size}")
  console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _show_sources(run: Run, console: Console) -> None:
  """Prints what is known of each corpus, with a warning where training would fail."""
  for found in source_check.check(run.data):
    verdict = {True: "", None: "not checked: ", False: "WARNING: training would fail: "}[found.ok]
    line = f"{found.what}: {verdict}{found.text}"
    style = "bold yellow" if found.ok is False else None
    console.print(line, markup=False, highlight=False, soft_wrap=True, style=style)


def _vocabulary_note(run: Run) -> str:
  if run.data.tokenizer.name != "bpe":
    return ""
  return " (config.data.tokenizer.vocab_size; a small corpus gives fewer, and fewer bytes)"
