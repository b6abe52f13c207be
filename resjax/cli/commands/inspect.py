"""Reads the states of a trained model: by a tuned lens, parts of a logit, patching, or over depth.

  resjax inspect --what=lens --checkpoint=runs/tiny --tokens=65536
  resjax inspect --what=attribution --checkpoint=runs/tiny --text="for i in" \\
    --answer=" range"
  resjax inspect --what=patching --hf=FOLDER --text="The capital of France is" \\
    --corrupted="The capital of Italy is" --answer=" Paris" --answer=" Rome"
  resjax inspect --what=depth --hf=FOLDER --data=text.jsonl --tokens=2048

lens trains an affine map for the state after every layer, such that the state decodes to what the
model says at the end, and shows how far it and the logit lens are from that. The maps lie in
lens.safetensors and belong to this checkpoint. attribution splits the logit of the first answer
(less that of the second one, if there is one) after --text into the parts that the sites and the
attention heads write. patching runs --corrupted with single states of --text and shows how much of
the difference between both answers comes back: 0 nothing, 1 all of it. Without --answer the most
probable token is taken. depth measures what layers do to the state, and what happens without them
(the probes of DepthBench): angles, what later layers change without an earlier one, the loss
without it and with neighbours swapped, mixing matrices of streams and Jacobians. Numbers go to
WHAT_results.json in --out, and a figure to WHAT.png. All combinators can be inspected; attribution
and depth refuse those for which they are not defined.
docs/readings.md says how the numbers compare with other tools'.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from matplotlib.figure import Figure
from rich.console import Console

from resjax.base import Location, locations, processes, terminal
from resjax.cli import command, text_flags
from resjax.cli.actions import analysis
from resjax.study import TrainedModel
from resjax.study.analysis import (
  EVERY,
  Attribution,
  Comparison,
  DepthProbes,
  Patching,
  ProbeConfig,
  attribute,
  depth_positions,
  depth_probes,
  patch,
  plots,
  to_plain,
  tuned_lens,
)
from resjax.study.analysis.report import depth_tables, reading_figures, visible
from resjax.train.runs import restore

_WHAT = flags.DEFINE_enum(
  "what", None, ("lens", "attribution", "patching", "depth"), "What to read."
)
_OUT = flags.DEFINE_string(
  "out", None, "Folder to write to; default: WORKDIR/WHAT for a run, runs/WHAT for --hf."
)
_TEXT = flags.DEFINE_string("text", None, "The prompt; for patching the clean one.")
_CORRUPTED = flags.DEFINE_string("corrupted", None, "The prompt whose states are replaced.")
_ANSWERS = flags.DEFINE_multi_string(
  "answer",
  [],
  "A token that may follow, with the blank before it; one or two. Default: the most "
  "probable one of each prompt.",
)
_EVERY = flags.DEFINE_enum("every", "layer", EVERY, "After what states are patched.")
_STEPS = flags.DEFINE_integer("steps", 250, "Steps of training a lens.", lower_bound=1)
_LAYERS = flags.DEFINE_list(
  "layers", [], "Layers after which a lens is trained; -1 is the last; default: all."
)
_WORDS = flags.DEFINE_integer(
  "words",
  0,
  "Words in the loss that trains a lens, drawn anew in each step; 0: all.",
  lower_bound=0,
)
_RATE = flags.DEFINE_float("learning_rate", 1e-3, "Rate of the first of them.", lower_bound=0)
_PROBES = flags.DEFINE_list(
  "probes", list(depth_probes.PROBES), "What of depth is measured; fewer take less time."
)
_PAIRS = flags.DEFINE_enum(
  "pairs", "neighbours", depth_probes.PAIRS, "The layers that change places, pair by pair."
)
_VECTORS = flags.DEFINE_integer(
  "vectors", 16, "Random vectors for the norms of Jacobians.", lower_bound=2
)


def main() -> None:
  """Reads the model of the command line."""
  command.join()
  if _WHAT.value is None:
    raise ValueError("nothing to read; give --what=lens, attribution, patching or depth")
  model = text_flags.load_one()
  folder = _folder()
  first = jax.process_index() == 0
  if first:
    locations.make_folder(folder, "--out")
  read = {"lens": _lens, "attribution": _attribution, "patching": _patching, "depth": _depth}
  read[_WHAT.value](model, folder, terminal.console(quiet=not first))
  processes.shutdown()


def _folder() -> Location:
  """Returns the folder to write to."""
  (root,) = [
    *(str(restore.find(path, "--checkpoint").workdir) for path in text_flags.CHECKPOINTS.value),
    *("runs" for _ in text_flags.FOLDERS.value),
  ]
  return locations.path(_OUT.value or f"{root}/{_WHAT.value}", "--out", writable=True)


def _lens(model: TrainedModel, folder: Location, console: Console) -> None:
  """Trains a tuned lens, saves it and shows how it compares with the logit lens."""
  layers = command.numbers(_LAYERS, int, "0,-1")
  text = text_flags.read_text(model)
  with terminal.status(quiet=jax.process_index() != 0) as status:
    lens, found = tuned_lens.train(
      model.decoder,
      text,
      steps=_STEPS.value,
      learning_rate=_RATE.value,
      layers=layers,
      words=_WORDS.value,
      progress=functools.partial(status, "training"),
    )
  every = ProbeConfig().positions(model.decoder.combinator)
  depth = model.decoder.config.num_layers
  trained = {layer % depth for layer in layers}
  positions = [one for one in every if not layers or one.layer in trained]
  table = terminal.Table(
    "after", numbers=("KL logit", "KL tuned", "gain", "loss logit", "loss tuned")
  )
  for row, name in enumerate(depth_positions.names(positions)):
    gain = f"{found.gain[row]:.4f} ±{found.gain_errors[row]:.4f}"
    cells = [f"{value:.4f}" for value in (*found.kl[:, row], *found.nats[:, row])]
    table.add_row(name, *cells[:2], gain, *cells[2:])
  console.print(table)
  terminal.say(
    console,
    f"nats per token over {found.num_tokens:,} held-out tokens of {text.name}; KL from the final "
    "prediction; ±: standard error over rows",
  )
  facts = {"corpus": text.name, "steps": _STEPS.value, "learning_rate": _RATE.value}
  facts |= {"words": _WORDS.value}
  fingerprint = model.fingerprint()
  if jax.process_index() == 0:
    tuned_lens.save(lens, folder, fingerprint)
  _write(model, folder, console, found, facts | {"positions": positions}, reading_figures.lens(
    found, positions, f"{model.name}  |  {text.name}"
  ))  # fmt: skip


def _attribution(model: TrainedModel, folder: Location, console: Console) -> None:
  """Shows which parts of a logit each site and head wrote."""
  tokens = _prompt(model, _TEXT.value, "--text")
  found = attribute(model.decoder, tokens, _answers(model, most=2))
  names, sites = _words(model, found.targets), model.decoder.combinator.sites
  table = terminal.Table("layer", numbers=(*sites, "sum so far"))
  parts = found.writes[1:].reshape(-1, len(sites))
  sums = found.writes[0] + np.cumsum(parts.sum(axis=1))
  table.add_row("embedding", *[""] * len(sites), f"{found.writes[0]:+.4f}")
  for layer, row in enumerate(parts):
    table.add_row(str(layer), *(f"{part:+.4f}" for part in row), f"{sums[layer]:+.4f}")
  console.print(table)
  of = " less that of ".join(map(repr, names))
  terminal.say(
    console,
    f"logit of {of} after the prompt: {found.logit:.4f}; parts with the bias of the final norm "
    f"({found.bias:+.4f}): {found.total:.4f}"
    + f"; no heads: {found.no_heads}"
    * bool(found.no_heads),
  )
  title = f"{model.name}  |  logit of {of}"
  facts = {"prompt": _words(model, tokens), "answers": names}
  _write(model, folder, console, found, facts, reading_figures.attribution(found, title))


def _patching(model: TrainedModel, folder: Location, console: Console) -> None:
  """Shows which states of one prompt bring its answer back into another one."""
  clean = _prompt(model, _TEXT.value, "--text")
  corrupted = _prompt(model, _CORRUPTED.value, "--corrupted")
  if np.array_equal(clean, corrupted):
    raise ValueError("--corrupted has the tokens of --text; give a prompt that differs in a word")
  answers = _answers(model, most=2)
  if len(answers) == 1:
    raise ValueError(f"--answer={_ANSWERS.value[0]!r} alone; give two answers to compare, or none")
  with terminal.status(quiet=jax.process_index() != 0) as status:
    found = patch(
      model.decoder,
      clean,
      corrupted,
      (answers[0], answers[1]) if answers else None,
      every=_EVERY.value,
      progress=functools.partial(status, "patching"),
    )
  shares, wholes = found.recovered(found.patched), found.recovered(found.patched_all)
  words = _words(model, clean)
  table = terminal.Table("after", numbers=("all tokens", "best single token"))
  for row, name in enumerate(depth_positions.names(found.positions)):
    best = int(np.argmax(np.nan_to_num(shares[row])))
    table.add_row(name, f"{wholes[row]:.3f}", f"{shares[row, best]:.3f} at {best} {words[best]!r}")
  console.print(table)
  names = _words(model, found.answers)
  terminal.say(
    console,
    f"share of the logit difference of {names[0]!r} and {names[1]!r} that comes back; it is "
    f"{found.clean:.4f} for --text and {found.corrupted:.4f} for --corrupted",
  )
  facts = {"prompt": words, "corrupted": _words(model, corrupted), "answers": names}
  title = f"{model.name}  |  {names[0]!r} against {names[1]!r}"
  _write(model, folder, console, found, facts, reading_figures.patching(found, words, title))


def _depth(model: TrainedModel, folder: Location, console: Console) -> None:
  """Shows what layers do to the depth state, and what happens without them."""
  depth_probes.check(model.decoder, _PROBES.value, _PAIRS.value, _VECTORS.value)
  text = text_flags.read_text(model, _depth_sizes)
  chosen: dict[str, Any] = {"probes": _PROBES.value, "pairs": _PAIRS.value}
  chosen |= {"vectors": _VECTORS.value}
  with terminal.status(quiet=jax.process_index() != 0) as status:
    flops = depth_probes.flops(model.decoder, text, **chosen)
    analysis.say_cost(model, text, flops, "probing", status)
    found = depth_probes.probe(
      model.decoder, text, model=model.name, **chosen, progress=functools.partial(status, "probing")
    )
  for table, words in depth_tables.tables(found):
    console.print(table)
    terminal.say(console, "\n".join(words))
  terminal.say(console, "\n".join(depth_tables.caption(found)))
  _write(model, folder, console, found, {"vectors": _VECTORS.value}, reading_figures.depth(found))


def _depth_sizes(model: TrainedModel, tokens: int, seq_len: int) -> tuple[int, int]:
  """Returns the most tokens and the length of rows by default: those of DepthBench, 16 of 256."""
  return tokens or 4096, seq_len or min(model.seq_len, 256)


def _prompt(model: TrainedModel, text: str | None, flag: str) -> np.ndarray:
  """Returns the tokens of a flag behind what stands in front of texts.

  Raises:
    ValueError: there is no text, or it is too long.
  """
  if not text:
    raise ValueError(f'no prompt; give one, for example {flag}="The capital of France is"')
  command.check_text(text, flag)
  return model.prompt(text, flag)


def _answers(model: TrainedModel, most: int) -> tuple[int, ...]:
  """Returns the tokens of --answers.

  Raises:
    ValueError: they are too many, or one is no single token.
  """
  if len(_ANSWERS.value) > most:
    raise ValueError(f"{len(_ANSWERS.value)} times --answer; give at most {most}")
  found = []
  for answer in _ANSWERS.value:
    command.check_text(answer, "--answer")
    tokens = model.tokenizer.encode_batch([answer])[0]
    if len(tokens) != 1:
      raise ValueError(
        f"--answer={answer!r} is {len(tokens)} tokens of {model.name}; give single tokens, "
        "often with the blank before them"
      )
    found.append(int(tokens[0]))
  return tuple(found)


def _words(model: TrainedModel, tokens: Sequence[int] | np.ndarray) -> list[str]:
  return [visible(model.tokenizer.piece(int(token))) for token in tokens]


def _write(
  model: TrainedModel,
  folder: Location,
  console: Console,
  found: Comparison | Attribution | Patching | DepthProbes,
  facts: dict[str, Any],
  figure: Figure,
) -> None:
  """Writes numbers and figure, and prints their places."""
  if jax.process_index() != 0:
    return
  common = {"what": _WHAT.value, "model": model.name, "prefix": model.prefix_in_words}
  values = common | facts | dataclasses.asdict(found)
  numbers, picture = folder / f"{_WHAT.value}_results.json", folder / f"{_WHAT.value}.png"
  locations.write_text(numbers, json.dumps(to_plain(values), indent=1, allow_nan=False) + "\n")
  plots.save(figure, picture)
  terminal.say(console, model.prefix_in_words)
  for path in (numbers, picture):
    console.print(str(path), markup=False, highlight=False, soft_wrap=True)


run = functools.partial(command.run, main)
