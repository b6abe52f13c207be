"""Where do trained models switch from the input token to the next one? Measures and reports it.

  python -m launch.analyze --checkpoint=runs/tiny --out=runs/tiny/analysis
  python -m launch.analyze --checkpoint=runs/a --checkpoint=runs/b --data=python-stdlib
  python -m launch.analyze --hf=FOLDER --data=text.jsonl --text="The cat sat on the" --every=site

Decodes the state after every layer with the final norm and the output embedding. Writes into --out
report.html, one page that needs no network, the same figures as PNG files in plots/, and all
numbers in results.json. Several models are laid over each other by relative depth. Figures of
launch.intervene join with --sensitivity=FILE.
"""

import dataclasses
from collections.abc import Sequence

import jax
from absl import flags
from rich import box
from rich.console import Console
from rich.table import Table

from launch import cli, subjects
from resjax import locations
from resjax.analysis.alignment import READINGS, Alignment
from resjax.analysis.measurement import measure
from resjax.analysis.probing import EVERY, ProbeConfig
from resjax.analysis.report import axis, heat_text, writing
from resjax.analysis.report.results import Results
from resjax.analysis.sensitivity import Sensitivity
from resjax.subjects import Subject

_OUT = flags.DEFINE_string("out", "runs/analysis", "Folder for page, plots and numbers.")
_TEXT = flags.DEFINE_string(
  "text", None, "Shown token by token at every depth; default: how the text of --data begins."
)
_EVERY = flags.DEFINE_enum("every", "layer", EVERY, "What a depth position comes after.")
_READINGS = flags.DEFINE_list(
  "readings", READINGS, "closed: as if the layers ended there; read: what the next site reads."
)
_SENSITIVITIES = flags.DEFINE_multi_string(
  "sensitivity", [], "JSON file of launch.intervene, of one of the models."
)


def main() -> None:
  """Measures the models of the command line and writes the report."""
  first, console = jax.process_index() == 0, Console(stderr=True)
  config = ProbeConfig(every=_EVERY.value, readings=tuple(_READINGS.value))
  if _TEXT.value is not None and not _TEXT.value.strip():
    raise ValueError("--text is empty; give a text of two tokens or more, or leave it out")
  found = [_sensitivity(path) for path in _SENSITIVITIES.value]
  models = _named_apart(subjects.load())
  _check_owners(found, models)
  folder = locations.path(_OUT.value, "--out", writable=True)
  if first:
    locations.make_folder(folder, "--out")
  results = []
  for subject in models:
    with console.status(f"measuring {subject.name}") if first else Console(quiet=True).status(""):
      own = [one for one in found if one.model == subject.name]
      results.append(_results(subject, config, own))
  if first:
    with console.status("drawing"):
      files = writing.write(results, folder)
    show(results, Console())
    for file in files:
      print(file)


def _results(subject: Subject, config: ProbeConfig, own: Sequence[Sensitivity]) -> Results:
  text = subjects.read_text(subject)
  layout, size = subject.decoder.layout, len(text.batches[0]["inputs"])
  rows = layout.rows(size)
  alignment = measure(
    subject.decoder,
    [{name: array[rows] for name, array in batch.items()} for batch in text.batches],
    batch_size=size,
    model=subject.name,
    corpus=text.name,
    config=config,
  )
  return Results(alignment, heat_text.heat_text(subject, _TEXT.value, text, config.every), own)


def show(results: Sequence[Results], console: Console) -> None:
  """Prints where each model switches."""
  table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  for heading in ("model", "layers", "tokens", "switch", "shuffled next"):
    table.add_column(heading, overflow="fold")
  for one in results:
    groups = next(iter(one.alignment.readings.values()))
    switches = [_switch(one.alignment, groups[name].switch) for name in ("all", "shuffled")]
    layers = str(axis.num_layers(one.alignment))
    table.add_row(one.alignment.model, layers, f"{groups['all'].num_tokens:,}", *switches)
  console.print(table)


def _switch(alignment: Alignment, switch) -> str:
  return axis.switch_text(alignment, switch)


def _sensitivity(path: str) -> Sensitivity:
  place = locations.path(path, "--sensitivity")
  try:
    return Sensitivity.from_json(place.read_text(encoding="utf-8"))
  except (OSError, ValueError, TypeError, KeyError, AttributeError):
    raise ValueError(f"--sensitivity={path} is no file that launch.intervene wrote") from None


def _named_apart(models: Sequence[Subject]) -> list[Subject]:
  """Returns models with names that differ: a number follows one that came before."""
  found: list[Subject] = []
  for subject in models:
    same = sum(subject.name == other.name for other in models[: len(found)])
    name = f"{subject.name} ({same + 1})" if same else subject.name
    found.append(dataclasses.replace(subject, name=name))
  return found


def _check_owners(found: Sequence[Sensitivity], models: Sequence[Subject]) -> None:
  names = [subject.name for subject in models]
  for one in found:
    if one.model not in names:
      raise ValueError(
        f"--sensitivity: figures of {one.model!r}, but the models are {', '.join(names)}; measure "
        "them with launch.intervene"
      )


if __name__ == "__main__":
  cli.run(main)
