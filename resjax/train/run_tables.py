"""What a run prints before its first step and after its last one."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from resjax.base import terminal
from resjax.base.hardware import compiler_options
from resjax.models import ModelDef, inactive_parameters, training_flops_per_token
from resjax.train import rate_jump
from resjax.train.optim import parameter_rows, warmup_steps
from resjax.train.runs import environment, history
from resjax.train.runs.config import Run
from resjax.train.runs.history import Part
from resjax.train.runs.init_from import Inheritance
from resjax.train.runs.parents import Parent


def model_costs(model: ModelDef, run: Run) -> dict[str, float]:
  """Returns the costs of a model: parameters, bytes of depth state, training FLOPs per token."""
  combinator, parameters = model.combinator, sum(leaf.size for leaf in model.leaves())
  return {
    "parameters": parameters,
    "active_parameters": parameters - inactive_parameters(run.decoder),
    "combinator_parameters": combinator.num_parameters(),
    "state_bytes_per_token": combinator.state_bytes_per_token(run.decoder.dtype),
    "training_flops_per_token": training_flops_per_token(run.decoder, combinator, run.data.seq_len),
  }


def show_model(model: ModelDef, run: Run, costs: Mapping[str, float], console: Console) -> None:
  """Prints every parameter with the optimizer's treatment of it, and the costs of the model."""
  table = terminal.Table("path", title="parameters")
  table.numbers("shape", justify="left")
  table.numbers("size")
  table.numbers("update", "decay", "lr ×", justify="left")
  split = run.layout.mesh.size > 1
  if split:
    table.numbers("sharding", justify="left")
  leaves = model.leaves()
  rows = parameter_rows(model.abstract, run.optim, model.decayed_combinator_paths, run.scaling)
  for row, leaf in zip(rows, leaves, strict=True):
    decay, spec = "yes" if row.decayed else "", [_spec(leaf.sharding.spec)] * split
    rate = f"{row.lr_multiplier * row.update_multiplier:g}"
    table.add_row(row.path, _shape(row.shape), f"{leaf.size:,}", row.update, decay, rate, *spec)
  console.print(table)
  terminal.say(
    console,
    f"{costs['parameters']:,} parameters, "
    + f"{costs['active_parameters']:,} of them active for a token, "
    * (run.decoder.moe.num_experts > 0)
    + f"{costs['combinator_parameters']:,} of them in the "
    f"combinator {run.decoder.residual.name!r}; "
    f"{costs['training_flops_per_token'] / 1e6:,.1f} MFLOP and "
    f"{costs['state_bytes_per_token']:,} bytes of depth state per token; "
    f"activations in {run.decoder.dtype}",
  )
  asked, steps = run.optim.warmup_steps, run.train.steps
  warmup = warmup_steps(run.optim, steps)
  if warmup < asked:
    terminal.say(
      console,
      f"warm-up: {warmup} steps, as the {asked} of config.optim.warmup_steps do not fit into "
      f"config.train.steps={steps}",
    )


def show_compiler_options(run: Run, console: Console) -> None:
  """Prints the options that the steps of a run are compiled with, if there are any."""
  if run.compiler_options:
    terminal.say(console, f"compiler options: {compiler_options.text(run.compiler_options)}")


def show_parent(
  parent: Parent, inheritance: Inheritance, changes: Sequence[str], console: Console
) -> None:
  """Prints which parameters a run takes from its parent, and whether it computes the same."""
  taken, new = inheritance.taken, inheritance.new
  lines = [f"starting from {parent.source}: {len(taken)} parameters taken, {len(new)} new"]
  lines += [f"  taken into the combinator: {path}" for path in inheritance.norms.values()]
  lines += [f"  new, as at init: {path}  {_shape(shape)}" for path, shape in new.items()]
  lines.append(
    f"the function changes: {'; '.join(changes)}" if changes else "the function is the parent's"
  )
  terminal.say(console, "\n".join(lines))


def show_resumption(
  run: Run, start: int, parts: Sequence[Part], console: Console, name: str = ""
) -> None:
  """Prints from which step a run goes on, what changes there, and a jump of the learning rate.

  Args:
    run: the run as it is now.
    start: the step of the checkpoint that it goes on from.
    parts: its parts so far.
    console: where to print.
    name: a prefix of the lines.
  """
  steps, before = run.train.steps, history.at(parts, max(start, 1))
  at_end = "; that is the last one, nothing to train" * (start >= steps)
  lines = [f"resuming after step {start} of {steps}{at_end}"]
  if before is not None:
    now = Part(start + 1, history.settings(run.resolved), environment.current())
    changed = "; ".join(map(str, history.changes(before, now)))
    if changed and at_end:
      lines.append(f"this has no effect, and is not recorded: {changed}")
    elif changed:
      lines += [f"from step {start + 1} on: {changed}", *rate_jump.explain(before, run, start)]
  terminal.say(console, "\n".join(f"{name}{line}" for line in lines))


def show_result(records: Sequence[Mapping[str, Any]], console: Console) -> None:
  """Prints the first and the last evaluation of a run, and how they differ."""
  found = evaluations(records)
  if not found:
    console.print("done; the record holds no evaluation")
    return
  first, last = (found[i]["validation/bits_per_byte"] for i in (0, -1))
  terminal.say(
    console,
    f"done: {found[-1]['step']} steps; validation {first:.4f} -> {last:.4f} bits per byte "
    f"({last / first - 1:+.1%})",
  )


def evaluations(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
  """Returns the records of a run that hold an evaluation."""
  return [r for r in records if r.get("validation/bits_per_byte") is not None]


def _shape(shape: tuple[int, ...]) -> str:
  return " × ".join(map(str, shape))


def _spec(spec: tuple) -> str:
  """Returns the mesh axes that split each axis of an array; `-` stands for an axis that is whole.

  The text is empty if all axes are whole.
  """
  if not any(spec):
    return ""
  return ", ".join("+".join([axes] if isinstance(axes, str) else axes or "-") for axes in spec)
