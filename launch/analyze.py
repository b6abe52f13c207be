"""Measures at which depth trained models switch from the input token to the next one.

  python -m launch.analyze --checkpoint=runs/tiny --out=runs/tiny/analysis
  python -m launch.analyze --checkpoint=runs/a --checkpoint=runs/b --data=python-stdlib
  python -m launch.analyze --hf=FOLDER --data=text.jsonl --text="The cat sat on the" --every=site

The command decodes the state after every layer with the final norm and the output embedding. It
writes into --out the page report.html, which needs no network, its figures as PNG files in plots/,
and all numbers in results.json. Gates and cuts have the factors by which they multiply the stream,
too: how much each layer attenuates it, and for several models whether the last one does. Figures
show several models over each other by relative depth. --sensitivity=FILE adds the figures of
launch.intervene to the page. The same command in several processes measures together; see
`resjax.processes.initialize`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch import cli, model_flags
from resjax import locations, processes, terminal, typed_json
from resjax.analysis import depth_positions, stream_factors
from resjax.analysis.alignment import READINGS
from resjax.analysis.heat_map import heat_map
from resjax.analysis.measurement import measure
from resjax.analysis.probing import EVERY, ProbeConfig
from resjax.analysis.report import factor_table, heat_table, page
from resjax.analysis.report.results import Results
from resjax.analysis.sensitivity import Sensitivity
from resjax.data.eval_text import MeasuredText
from resjax.measured_models import Subject

_OUT = flags.DEFINE_string("out", "runs/analysis", "Folder to write page, plots and numbers to.")
_TEXT = flags.DEFINE_string(
  "text",
  None,
  "Text to show token by token at every depth; default: the beginning of --data.",
)
_EVERY = flags.DEFINE_enum("every", "layer", EVERY, "After what the state is decoded.")
_READINGS = flags.DEFINE_list(
  "readings",
  list(READINGS),
  "What is decoded. closed: the output if the layers ended there; read: what the next site reads.",
)
_SENSITIVITIES = flags.DEFINE_multi_string(
  "sensitivity", [], "JSON file that launch.intervene wrote for one of the models."
)

_SHOWN = 48  # how many tokens of --data the table shows without --text


def main() -> None:
  """Measures the models of the command line and writes the report."""
  cli.join()
  first = jax.process_index() == 0
  console = terminal.console(stderr=True, quiet=not first)
  config = ProbeConfig(every=_EVERY.value, readings=tuple(_READINGS.value))
  if _TEXT.value is not None and not _TEXT.value.strip():
    raise ValueError("--text is empty; give a text of two tokens or more, or leave it out")
  cli.check_text(_TEXT.value or "", "--text")
  found = [_sensitivity(path) for path in _SENSITIVITIES.value]
  models = _named_apart(model_flags.load())
  _check_owners(found, models)
  texts = [model_flags.read_text(subject) for subject in models]
  shown = [_shown_tokens(subject, text) for subject, text in zip(models, texts, strict=True)]
  folder = locations.path(_OUT.value, "--out", writable=True)
  if first:
    locations.make_folder(folder, "--out")
  results = []
  for subject, text, tokens in zip(models, texts, shown, strict=True):
    with console.status(Text(f"measuring {subject.name}")):
      rows = _rows_here(subject, text)
      alignment = measure(
        subject.decoder, **rows, model=subject.name, corpus=text.name, config=config
      )
      factors = stream_factors.measure(subject.decoder, **rows)
      cells = heat_map(subject.decoder, tokens, config.every)
    source = text.name if _TEXT.value is None else "a text of the command line"
    heat = heat_table.in_words(cells, tokens, subject.tokenizer, source)
    own = [one for one in found if one.model == subject.name]
    results.append(Results(alignment, heat, own, factors))
  if first:
    with console.status("drawing"):
      files = page.write(results, folder)
    show(results, terminal.console())
    for file in files:
      print(file)
  processes.shutdown()


def _rows_here(subject: Subject, text: MeasuredText) -> dict[str, Any]:
  """Returns the batches of a text with the rows of this process, and the size of a whole batch."""
  size = len(text.batches[0]["inputs"])
  rows = subject.decoder.layout.rows(size)
  batches = [{name: array[rows] for name, array in batch.items()} for batch in text.batches]
  return {"batches": batches, "batch_size": size}


def _shown_tokens(subject: Subject, text: MeasuredText) -> np.ndarray:
  """Returns an end of text and the tokens of --text, or the first tokens of the data.

  Raises:
    ValueError: --text is too short or too long.
  """
  if _TEXT.value is None:
    row, segments = (text.batches[0][name][0] for name in ("inputs", "segment_ids"))
    return row[segments == segments[0]][:_SHOWN]  # from the first document alone
  tokens = subject.tokenizer.encode_batch([_TEXT.value])[0]
  if len(tokens) < 2:
    raise ValueError(
      f"--text={_TEXT.value!r} is one token of {subject.name}; give a text of two tokens or more"
    )
  if len(tokens) >= subject.seq_len:
    raise ValueError(
      f"--text is {len(tokens)} tokens of {subject.name}, whose rows have {subject.seq_len}, the "
      "end of text before it included; give a shorter text"
    )
  return np.concatenate([[subject.tokenizer.eot_id], tokens])


def show(results: Sequence[Results], console: Console) -> None:
  """Prints after which layer each model switches."""
  table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  for heading in ("model", "layers", "tokens", "switch", "shuffled next"):
    table.add_column(heading, overflow="fold")
  for one in results:
    groups = next(iter(one.alignment.readings.values()))
    switches = [
      depth_positions.switch_text(one.alignment, groups[name].switch)
      for name in ("all", "shuffled")
    ]
    layers = str(depth_positions.num_layers(one.alignment))
    table.add_row(one.alignment.model, layers, f"{groups['all'].num_tokens:,}", *switches)
  console.print(table)
  named = [(one.alignment.model, one.factors) for one in results if one.factors is not None]
  factor_table.show(named, console)


def _sensitivity(path: str) -> Sensitivity:
  place = locations.path(path, "--sensitivity")
  try:
    text = locations.read_bytes(place, typed_json.MOST_BYTES)
    return Sensitivity.from_json(text, str(place))
  except (OSError, ValueError) as error:
    raise ValueError(
      f"--sensitivity={path} is no file that launch.intervene has written: {error}"
    ) from None


def _named_apart(models: Sequence[Subject]) -> list[Subject]:
  """Returns the models with names that differ; equal names get numbers."""
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
