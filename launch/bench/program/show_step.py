"""Prints on the terminal what a compiled step does, for `resjax aot` of a checkout."""

import dataclasses

from rich.console import Console

from launch.bench.program.collectives import asynchronous_places
from launch.bench.program.parts import PARTS
from launch.bench.program.passes import Passes
from launch.bench.program.read_step import CompiledStep
from resjax.base import terminal


def show_step(step: CompiledStep, console: Console) -> None:
  """Prints matrix products and exchanges of a step."""
  products = f"{step.matrix_flops / 1e12:.3f} TFLOP"
  terminal.say(console, f"matrix products as compiled, loops times their trips: {products}")
  columns = ("network", "asynchronous", "MiB each", "places", "times", "GiB in a step")
  table = terminal.Table(
    "kind, mesh axes",
    numbers=columns,
    title="exchanges between devices in a step",
    title_justify="left",
  )
  for row in step.collectives:
    table.add_row(
      f"{row.kind} over {', '.join(row.axes) or 'itself'}",
      row.network,
      "yes" if row.asynchronous else "",
      f"{row.num_bytes / 2**20:.3f}",
      f"{row.places:,}",
      f"{row.times:,}",
      f"{row.num_bytes * row.times / 2**30:.3f}",
    )
  console.print(table)
  shares = [
    f"{kind} {hidden} of {total}"
    for kind in dict.fromkeys(row.kind for row in step.collectives)
    for hidden, total in [asynchronous_places(step.collectives, kind)]
  ]
  named = ", ".join(shares) or "none"
  terminal.say(console, f"asynchronous, of the places in the program: {named}")
  if loops := step.unknown_loops:
    terminal.say(console, f"loops that count once because their trips are unknown: {loops}")


def show_passes(residual: str, step: CompiledStep, standard: Passes, console: Console) -> None:
  """Prints the memory traffic of a step by part, beside that of the same model with `standard`.

  Args:
    residual: its name.
    step: what the step does.
    standard: the traffic of the step with `standard`.
    console: where it is printed.
  """
  passes, floor = step.passes, step.floor
  table = terminal.Table(
    "",
    numbers=(residual, "standard", "extra", "in HBM", "standard", "extra"),
    title="memory traffic, passes per sublayer",
    title_justify="left",
  )
  for name, parts in {**{part: (part,) for part in PARTS}, "all": PARTS}.items():
    numbers: list[float] = []
    for ours, plain in ((passes.total, standard.total), (passes.hbm, standard.hbm)):
      moved = sum(ours[part] for part in parts), sum(plain[part] for part in parts)
      numbers += [*moved, moved[0] - moved[1]]
    table.add_row(name, *[f"{number:.2f}" for number in numbers])
  console.print(table)
  if passes.guessed:
    named = ", ".join(passes.guessed)
    terminal.say(console, f"counted in full because they depend on data: {named}")
  if floor:
    terms = {key.replace("_", " "): size for key, size in dataclasses.asdict(floor).items() if size}
    listed = ", ".join(f"{key} {size:.2f}" for key, size in terms.items())
    terminal.say(console, f"the least for depth mixing by formulas: {floor.sum:.2f} ({listed})")
