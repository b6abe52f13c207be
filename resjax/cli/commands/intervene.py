"""Measures what a trained model loses when its residual path is cut, layer by layer.

  resjax intervene --checkpoint=runs/tiny --alphas=0,0.25,0.5 --out=runs/tiny/cuts.json
  resjax intervene --hf=FOLDER --data=text.jsonl --layers=-3,-2,-1 --sites=mlp --out=FILE

At one layer after another the sites of --sites become x ← alpha x + f(x); all others stay as they
are, and nothing is trained. The command prints by layer and alpha how much the loss grows, and
where the next token emerges; and by layer and site the slope of the loss at alpha 1, which says
which way it goes at first, and not what a cut with alpha 0.9 does. The figures are written as
JSON, which `resjax analyze --sensitivity=FILE` draws. configs/ablations/finetune_cuts.py trains
from such cuts. The same command in several processes measures together; see
`resjax.base.processes.initialize`.
"""

import functools

import jax
import numpy as np
from absl import flags
from rich.console import Console

from resjax.base import Location, locations, processes, terminal
from resjax.cli import command, text_flags
from resjax.study import TrainedModel
from resjax.study.analysis import (
  Alignment,
  Sensitivity,
  check_supported,
  depth_positions,
  interventions,
)

_ALPHAS = flags.DEFINE_list("alphas", ["0", "0.25", "0.5"], "Factors of the stream at a cut.")
_LAYERS = flags.DEFINE_list("layers", [], "Layers to cut; -1 is the last; default: all.")
_SITES = flags.DEFINE_list("sites", [], "Sites of a layer that are cut together; default: all.")
_ALIGNMENT = flags.DEFINE_bool("alignment", True, "Also measure the alignment, which is slower.")
_OUT = flags.DEFINE_string("out", None, "JSON file to write the figures to.")


def main() -> None:
  """Measures the model of the command line."""
  command.join()
  out = _out()
  alphas, layers = command.numbers(_ALPHAS, float), command.numbers(_LAYERS, int)
  model = text_flags.load_one()
  found = _measure(model, alphas, layers)
  if jax.process_index() == 0:
    console = terminal.console()
    show(found, console)
    locations.write_text(out, found.to_json())
    console.print(str(out), markup=False, highlight=False, soft_wrap=True)
  processes.shutdown()


def _measure(model: TrainedModel, alphas: list[float], layers: list[int]) -> Sensitivity:
  check_supported(model.decoder)  # before the text, which may take minutes
  text = text_flags.read_text(model)
  with terminal.status(quiet=jax.process_index() != 0) as status:
    return interventions.sensitivity(
      model.decoder,
      text,
      model=model.name,
      alphas=alphas,
      layers=layers,
      sites=_SITES.value,
      alignment=_ALIGNMENT.value,
      progress=functools.partial(status, "cutting"),
    )


def show(found: Sensitivity, console: Console) -> None:
  """Prints the additional loss of every layer and alpha, and where the next token emerges."""
  alphas = [f"alpha {alpha:g}" for alpha in found.alphas]
  difference = found.loss - found.baseline_loss
  console.print(_table(found, alphas, _with_errors(difference, found.errors)))
  terminal.say(
    console,
    f"{found.model} ({found.residual}) on {found.num_tokens:,} tokens of {found.corpus}: loss "
    f"{found.baseline_loss:.4f} nats per token; above it with x ← alpha x + f(x) at "
    f"{' and '.join(found.sites)} of one layer, ± standard errors over rows",
  )
  slopes = _with_errors(found.slopes, found.slope_errors)
  console.print(_table(found, [f"slope {site}" for site in found.sites], slopes))
  terminal.say(
    console,
    "slope: nats per token by which the loss grows with ln alpha of one site, at alpha 1: the "
    "first order of a cut, which at alpha 0.9 the second may outweigh",
  )
  if found.prefix:
    terminal.say(console, found.prefix)
  if found.baseline_alignment is not None:
    rows = [[_emergence(alignment) for alignment in row] for row in found.alignments]
    console.print(_table(found, alphas, rows))
    terminal.say(
      console,
      f"after which layer the next token has half of the probability that it has in the end; -: "
      f"no shift, ?: not localised; {_emergence(found.baseline_alignment)} in the model as it is",
    )


def _with_errors(values: np.ndarray, errors: np.ndarray) -> list[list[str]]:
  """Returns the texts of values with their standard errors; one row of tokens has none."""
  return [
    [
      f"{value:+.4f}" + (f" ±{error:.4f}" if error >= 0 else "")
      for value, error in zip(*row, strict=True)
    ]
    for row in zip(values, errors, strict=True)
  ]


def _table(found: Sensitivity, columns: list[str], rows: list[list[str]]) -> terminal.Table:
  table = terminal.Table(numbers=("layer", *columns))
  for layer, row in zip(found.layers, rows, strict=True):
    table.add_row(str(layer), *row)
  return table


def _emergence(alignment: Alignment) -> str:
  """Returns after which layer the next token emerges, `-` if it does not, or `?`: see `show`."""
  shift = depth_positions.shift_of(alignment)
  if shift is None or shift.emergence.index is None:
    return "-" if shift is None or shift.emergence.is_absent else "?"
  layer = alignment.positions[shift.emergence.index].layer
  return "embedding" if layer < 0 else str(layer)


def _out() -> Location:
  """Returns the file of --out, whose folder is made and can be written."""
  if not _OUT.value:
    raise ValueError("no file for the figures; give one, for example --out=runs/cuts.json")
  out = locations.path(_OUT.value, "--out", writable=True)
  if jax.process_index() == 0:
    locations.make_folder(out.parent, "--out")
  if out.is_dir():
    raise ValueError(f"--out={out} is a folder; give a file, for example {out / 'cuts.json'}")
  return out


run = functools.partial(command.run, main)
