"""Measures at which depth trained models stop to read the input token, and read the next one.

  resjax analyze --checkpoint=runs/tiny --out=runs/tiny/analysis
  resjax analyze --checkpoint=runs/a --checkpoint=runs/b --data=python-stdlib
  resjax analyze --hf=FOLDER --data=text.jsonl --text="The cat sat on the" --every=site

The command decodes the state after every layer with the final norm and the output embedding. It
writes into --out the page report.html, which needs no network, its figures as PNG files in plots/
(and as --figures says), and all numbers in results.json. Gates and cuts have the factors by which
they multiply the stream, too: how much each layer attenuates it, and for several models whether the
last one does. Figures show several models over each other by relative depth. --sensitivity=FILE
adds the figures of resjax intervene to the page. The same command in several processes measures
together; see `resjax.base.processes.initialize`.
"""

import functools

import jax
from absl import flags

from resjax.base import locations, processes, terminal, typed_json
from resjax.cli import command, text_flags
from resjax.cli.actions import analysis
from resjax.study.analysis import EVERY, READINGS, ProbeConfig, Sensitivity

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
  "sensitivity", [], "JSON file that resjax intervene wrote for one of the models."
)
_TITLES = flags.DEFINE_bool("titles", False, "The files of figures have titles.")


def main() -> None:
  """Measures the models of the command line and writes the report."""
  command.join()
  first = jax.process_index() == 0
  config = ProbeConfig(every=_EVERY.value, readings=tuple(_READINGS.value))
  analysis.check_text(_TEXT.value)
  command.check_text(_TEXT.value or "", "--text")
  found = [_sensitivity(path) for path in _SENSITIVITIES.value]
  sizes = functools.partial(analysis.sizes, config)
  read_text = functools.partial(text_flags.read_text, sizes=sizes)
  models = analysis.prepare(text_flags.load(), read_text, _TEXT.value, found)
  folder = locations.path(_OUT.value, "--out", writable=True)
  if first:
    locations.make_folder(folder, "--out")
  with terminal.status(quiet=not first) as status:
    results = analysis.measure_all(models, config, status)
    if first:
      status("drawing")
      written = analysis.write(results, folder, titles=_TITLES.value)
  if first:
    analysis.show(results, terminal.console())
    for file in written.files:
      print(file)
  processes.shutdown()


def _sensitivity(path: str) -> Sensitivity:
  place = locations.path(path, "--sensitivity")
  try:
    text = locations.read_bytes(place, typed_json.MOST_BYTES)
    return Sensitivity.from_json(text, str(place))
  except (OSError, ValueError) as error:
    raise ValueError(
      f"--sensitivity={path} is no file that resjax intervene has written: {error}"
    ) from None


run = functools.partial(command.run, main)
