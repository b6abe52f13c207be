"""Prints the results of resjax aot on the terminal."""

from collections.abc import Sequence

from rich.console import Console

from resjax.aot.absent_devices import AbsentSlices
from resjax.aot.compile_step import Report
from resjax.aot.memory import GIB, DoesNotFitError, Memory
from resjax.aot.suggest_settings import Try
from resjax.aot.verify_changes import Verified
from resjax.base import terminal
from resjax.base.hardware import compiler_options
from resjax.train.runs import Run


def show_target(run: Run, target: AbsentSlices, console: Console) -> None:
  """Prints which model is compiled for which devices."""
  decoder, train = run.decoder, run.train
  slices = f"{target.num_slices} slices of " * (target.num_slices > 1)
  mesh = " × ".join(f"{axis} {size}" for axis, size in run.layout.mesh.shape.items() if size > 1)
  rows = train.batch_size // run.layout.num_shards("batch") // train.microbatches
  terminal.say(
    console,
    f"{decoder.residual.name}, {decoder.num_layers} layers of {decoder.d_model}, rows of "
    f"{run.data.seq_len} tokens, for {slices}{target.part.name}: {run.layout.mesh.size} devices "
    f"({target.devices[0].device_kind}), {mesh or 'one device'}; {rows} rows per device and "
    f"microbatch, {train.microbatches} microbatches, remat {decoder.remat}",
  )
  terminal.say(console, f"compiler options: {compiler_options.text(run.compiler_options)}")


def show_report(report: Report, target: AbsentSlices, console: Console) -> None:
  """Prints memory, operations and compile time of a step."""
  _show_memory(report.memory, target, console)
  flops = report.flops
  table = _table("operations of a step on one device, TFLOP")
  table.add_row("the model's formula, nothing recomputed", _tera(flops.model))
  table.add_row("the compiler's count, the body of a loop once", _tera(flops.compiler))
  console.print(table)
  if report.bytes_accessed is not None:
    moved = report.bytes_accessed / GIB
    terminal.say(console, f"bytes accessed, counting the body of a loop once: {moved:.2f} GiB")
  terminal.say(
    console,
    f"lowered in {report.lower_seconds:.1f} s, compiled in {report.compile_seconds:.1f} s, "
    f"{report.cpu_seconds:.1f} s of CPU time; program {report.fingerprint}",
  )


def show_refusal(error: DoesNotFitError, changes: Sequence[str], console: Console) -> None:
  """Prints how much memory is missing, and what to change."""
  given = error.arguments
  _show_sizes(
    console,
    ("parameters", given.parameters),
    ("optimizer moments", given.optimizer),
    ("batch", given.batch),
    ("temporaries and output", error.required - given.total),
    ("needed", error.required),
    ("available", error.available),
    ("missing", error.shortfall),
  )
  terminal.say(console, f"does not fit: {error}. What to change, one after the other:")
  for number, change in enumerate(changes, 1):
    terminal.say(console, f"  {number}. {change}")


def show_verified(found: Verified, console: Console) -> None:
  """Prints what compiling with suggested changes has shown."""
  outcome = found.outcome
  if isinstance(outcome, Report):
    terminal.say(console, f"compiled: it fits, in {outcome.memory.total / GIB:.2f} GiB, with")
  else:
    terminal.say(console, f"compiled: it still does not fit ({outcome}) with")
  terminal.say(console, f"  {found.flags}")


def show_try(one: Try, console: Console) -> None:
  """Prints one try of a search."""
  used = one.outcome.memory.total if isinstance(one.outcome, Report) else one.outcome.required
  terminal.say(
    console,
    f"remat {one.remat}, {one.rows} rows per device, {one.microbatches} microbatches: "
    f"{used / GIB:.2f} GiB, {'fits' if one.fits else 'does not fit'}",
  )


def _show_memory(memory: Memory, target: AbsentSlices, console: Console) -> None:
  given, chip = memory.arguments, target.part.chip
  _show_sizes(
    console,
    ("parameters", given.parameters),
    ("optimizer moments", given.optimizer),
    ("batch", given.batch),
    ("padding of these", memory.padding),
    ("temporaries", memory.temporaries),
    ("output, not donated", memory.output),
    ("generated code", memory.code),
    ("needed", memory.total),
    (f"available of {chip.device_memory:g}", chip.available_memory * GIB),
  )
  terminal.say(
    console,
    f"the step fits; {memory.donated / GIB:.2f} GiB of output take the place of donated arguments",
  )


def _show_sizes(console: Console, *rows: tuple[str, float]) -> None:
  table = _table("HBM of one device, GiB")
  for name, size in rows:
    table.add_row(name, f"{size / GIB:.3f}")
  console.print(table)


def _table(title: str) -> terminal.Table:
  return terminal.Table("", numbers=("",), title=title, title_justify="left", show_header=False)


def _tera(flops: float | None) -> str:
  return "not told" if flops is None else f"{flops / 1e12:.3f}"
