"""Measures at which depth models turn to the next token, and writes the page about it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from resjax.base import Location, terminal
from resjax.cli.actions import loading
from resjax.data import MeasuredText
from resjax.study import TrainedModel
from resjax.study.analysis import (
  ProbeConfig,
  Sensitivity,
  depth_positions,
  expected_seconds,
  heat_map,
  measure,
  stream_factors,
)
from resjax.study.analysis.report import Results, factor_table, heat_table, page

# By default an analysis on a CPU has as many tokens as take this many FLOPs, a minute or two of two
# cores; and its rows are so short that there are enough of them for intervals.
_MOST_FLOPS, _LEAST_ROWS, _LEAST_LENGTH = 2e13, 16, 128
_SAID = 10.0  # the seconds from which on it is said before how long a measurement will take
_SHOWN = 48  # how many tokens of the data the table shows where no text is given


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Analysis:
  """Where models stop to read the input token, and begin to read the next one.

  Attributes:
    results: the measurements, for each model.
    page: the page of HTML that shows it.
    files: the page, the folder of its figures, and the file with all numbers.
  """

  results: Sequence[Results]
  page: Location
  files: Sequence[Location]

  def __repr__(self) -> str:
    lines = [terminal.text_of(lambda console: show(self.results, console)), *map(str, self.files)]
    return "\n".join(lines)

  def _repr_html_(self) -> str:
    """Returns the HTML for a notebook: the text, and plots of the ranks of one or all models."""
    folder = self.page.parent / page.PLOTS
    ranks = "overlay_rank*.png" if len(self.results) > 1 else "1_rank.png"
    pictures = sorted(folder.glob(ranks), key=str)
    return terminal.notebook_html(repr(self), [picture.read_bytes() for picture in pictures])


def check_text(text: str | None) -> None:
  """Raises ValueError if a text to show is empty."""
  if text is not None and not text.strip():
    raise ValueError("--text is empty; give a text of two tokens or more, or leave it out")


def prepare(
  models: Sequence[TrainedModel],
  texts: Callable[[TrainedModel], MeasuredText],
  text: str | None,
  sensitivities: Sequence[Sensitivity] = (),
) -> Sequence["Prepared"]:
  """Returns models with the texts to measure them on, under names that differ.

  Args:
    models: the models.
    texts: returns the data for a model.
    text: the text to show token by token; None: the beginning of the data.
    sensitivities: results of `resjax intervene` for some of the models.

  Raises:
    ValueError: a text is too short or too long, or a sensitivity belongs to none of the models.
  """
  apart: list[TrainedModel] = []  # names differ
  for model in models:
    apart.append(model.renamed([one.name for one in apart]))
  _check_owners(sensitivities, apart)
  found = []
  for model in apart:
    data = texts(model)
    own = [one for one in sensitivities if one.model == model.name]
    found.append(Prepared(model, data, shown_tokens(model, data, text), text is None, own))
  return found


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
  """A model that is about to be measured.

  Attributes:
    model: the model.
    data: the text that it is measured on.
    shown: the tokens of the heat map, what stands in front of texts first.
    of_data: whether these are the beginning of the data.
    sensitivities: what cuts of its residual path do.
  """

  model: TrainedModel
  data: MeasuredText
  shown: np.ndarray
  of_data: bool
  sensitivities: Sequence[Sensitivity]

  def measure(self, config: ProbeConfig, progress: Callable[[int, int], None]) -> Results:
    """Measures the model; all processes call this together."""
    model, rows = self.model, self._rows_here()
    alignment = measure(
      model.decoder,
      **rows,
      model=model.name,
      corpus=self.data.name,
      config=config,
      progress=progress,
    )
    factors = stream_factors.measure(model.decoder, **rows)
    cells = heat_map.heat_map(model.decoder, self.shown, config.every)
    source = self.data.name if self.of_data else "a text that was given"
    heat = heat_table.in_words(cells, self.shown, model.tokenizer, source)
    return Results(alignment, heat, self.sensitivities, factors, self.data.prefix)

  def _rows_here(self) -> dict[str, Any]:
    """Returns the batches with the rows of this process, and the size of a whole batch."""
    size = len(self.data.batches[0]["inputs"])
    rows = self.model.decoder.layout.rows(size)
    batches = [{name: array[rows] for name, array in batch.items()} for batch in self.data.batches]
    return {"batches": batches, "batch_size": size}


def measure_all(
  models: Sequence[Prepared], config: ProbeConfig, status: terminal.Status
) -> list[Results]:
  """Measures models one after another; `status` shows each, and how long it will take."""
  found = []
  for one in models:
    doing, (rows, length) = f"measuring {one.model.name}", one.data.batches[0]["inputs"].shape
    status(doing)
    tokens = rows * length * len(one.data.batches)
    flops = tokens * config.flops_per_token(one.model.decoder, length)
    say_cost(one.model, one.data, flops, doing, status)
    found.append(one.measure(config, functools.partial(status, doing)))
  return found


def say_cost(
  model: TrainedModel, text: MeasuredText, flops: float, doing: str, status: terminal.Status
) -> None:
  """Says how long a measurement of so many FLOPs will take, if that is long."""
  seconds = expected_seconds(model.decoder, flops)
  if seconds >= _SAID:
    status.say(
      f"{doing}: {text.num_tokens:,} tokens in rows of {text.batches[0]['inputs'].shape[1]:,}, "
      f"about {terminal.in_time(seconds)}"
    )


def sizes(
  config: ProbeConfig, model: TrainedModel, tokens: int = 0, seq_len: int = 0
) -> tuple[int, int]:
  """Returns the most tokens of an analysis, and the length of rows, each by default where it is 0.

  That is 16,384 tokens in rows as in training; on CPUs as many as take 2e13 FLOPs at most, in rows
  of 128 tokens or more that are halved until there are 16 of them.
  """
  length = seq_len or model.seq_len
  if tokens or model.decoder.layout.platform != "cpu":
    return tokens or loading.MOST_TOKENS, length
  affordable = int(_MOST_FLOPS / config.flops_per_token(model.decoder, length))
  tokens = min(loading.MOST_TOKENS, max(affordable, _LEAST_ROWS * _LEAST_LENGTH))
  if not seq_len and tokens < loading.MOST_TOKENS:
    while length >= 2 * _LEAST_LENGTH and tokens < _LEAST_ROWS * length:
      length //= 2
  return tokens, length


def write(results: Sequence[Results], folder: Location, *, titles: bool = False) -> Analysis:
  """Writes the page with its figures and numbers into a folder, which exists; see `page.write`."""
  files = page.write(results, folder, titles=titles)
  return Analysis(results, files[0], files)


def shown_tokens(model: TrainedModel, data: MeasuredText, text: str | None) -> np.ndarray:
  """Returns the tokens of a text behind what stands in front of it, or the first ones of the data.

  Raises:
    ValueError: the text is too short or too long.
  """
  if text is None:
    row, segments = (data.batches[0][name][0] for name in ("inputs", "segment_ids"))
    return row[segments == segments[0]][:_SHOWN]  # from the first document alone
  tokens = model.prompt(text)
  if len(tokens) - len(model.prefix) < 2:
    raise ValueError(
      f"--text={text!r} is one token of {model.name}; give a text of two tokens or more"
    )
  return tokens


def show(results: Sequence[Results], console: Console) -> None:
  """Prints after which layers each model stops to read the input token and reads the next one."""
  table = terminal.Table("model", numbers=("layers", "tokens"))
  for heading in ("input lost", "next emerges", "neither read", "shuffled"):
    table.add_column(heading)
  for one in results:
    groups = next(iter(one.alignment.readings.values()))
    shift, shuffled = (
      depth_positions.shift_of(one.alignment, name) for name in ("all", "shuffled")
    )
    lost, emerges, _, unread = depth_positions.cells(one.alignment, shift)
    texts = lost, emerges, unread, depth_positions.emergence_text(one.alignment, shuffled)
    # The sentences below have the intervals.
    told = [text.partition(" (")[0].removeprefix("after ") for text in texts]
    layers = str(depth_positions.num_layers(one.alignment))
    table.add_row(one.alignment.model, layers, f"{groups['all'].num_tokens:,}", *told)
  console.print(table)
  for one in results:
    if one.prefix:
      terminal.say(console, one.prefix)
    words = depth_positions.answer(one.alignment)
    terminal.say(console, f"{one.alignment.model}: {words}")
  named = [(one.alignment.model, one.factors) for one in results if one.factors is not None]
  factor_table.show(named, console)


def _check_owners(found: Sequence[Sensitivity], models: Sequence[TrainedModel]) -> None:
  names = [model.name for model in models]
  for one in found:
    if one.model not in names:
      raise ValueError(
        f"--sensitivity: figures of {one.model!r}, but the models are {', '.join(names)}; measure "
        "them with resjax intervene"
      )
