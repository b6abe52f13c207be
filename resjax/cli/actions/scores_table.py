"""Prints what models make of texts and tasks."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console

from resjax.base import terminal
from resjax.study.evaluation import STREAM, TOKENS, Difference, Report, corpora

_SHOWN = ("bits_per_byte", "word_perplexity", "token_perplexity", "acc", "perplexity")
_COMPARED = ("bits_per_byte", "acc", "perplexity")

_Found = TypeVar("_Found")
_Tasks = Sequence[Mapping[str, Any]]


def show(report: Report, tasks: _Tasks, console: Console) -> None:
  """Prints the figures with their standard errors, how they come about, and differences."""
  measured = {one.corpus.name: one for one in report.measured}
  models = list(dict.fromkeys(one.model for one in report.measured))

  def title(text: str) -> str:
    return text if text in measured or text == corpora.MACRO else f"{text} (macro)"

  rows = [
    (title(text), model, name, _number(found.value), _number(found.stderr))
    for (model, text), metrics in _by_text(report.figures)
    for name, found in metrics.items()
    if name in _SHOWN
  ] + [row for one in tasks for row in _harness_rows(one)]
  several = len({row[1] for row in rows}) > 1
  _print(console, ("text", "model", "metric", "value", "±"), rows, several=several)
  counts: dict[tuple[str, str], list[str]] = {}  # models by text and what they made of it
  for one in report.measured:
    units = "windows" if one.corpus.rule.kind in (STREAM, TOKENS) else "documents"
    facts = (
      f"{one.sums('tokens'):,.0f} tokens in {len(one.ids):,} {units}; rows of "
      f"{one.cut.max_length}, stride {one.cut.stride}"
    )
    counts.setdefault((one.corpus.name, facts), []).append(one.model)
  for (name, facts), of in counts.items():
    whose = "" if of == models else f" ({', '.join(of)})"
    console.print(
      f"{name}: {facts}{whose}; {measured[name].corpus.rule.says}", highlight=False, markup=False
    )
  for one in report.measured:
    if one.lossy:
      console.print(
        f"warning: {one.corpus.name}: the tokenizer of {one.model} cannot spell all of "
        f"{one.lossy:,} documents, whose bits per byte are too low",
        highlight=False,
        markup=False,
      )
  differences = [
    (title(text), model, name, _signed(found.value), _interval(found))
    for (model, text), metrics in _by_text(report.differences)
    for name, found in metrics.items()
    if name in _COMPARED
  ]
  if differences:
    console.print(
      f"\ndifferences from {models[0]}; documents are drawn again for both together:",
      highlight=False,
    )
    columns = ("text", "model", "metric", "difference", "95 % interval")
    _print(console, columns, differences, several=True)


def _by_text(found: Mapping[tuple[str, str], _Found]) -> list[tuple[tuple[str, str], _Found]]:
  """Returns results by model and text, with all models of a text together."""
  texts = list(dict.fromkeys(text for _, text in found))
  return sorted(found.items(), key=lambda item: texts.index(item[0][1]))


def _print(
  console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], *, several: bool
) -> None:
  shown = [i for i, column in enumerate(columns) if several or column != "model"]
  table = terminal.Table()
  for index in shown:
    if columns[index] in ("text", "model", "metric"):
      table.add_column(columns[index])
    else:
      table.numbers(columns[index])
  for row in rows:
    table.add_row(*[row[index] for index in shown])
  console.print(table)


def _harness_rows(one: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
  """Returns table rows of the results of the harness, whose keys are METRIC,FILTER."""
  rows = []
  for task, metrics in one["results"].items():
    for key, value in metrics.items():
      name, _, kind = key.partition(",")
      if kind and not name.endswith("_stderr") and isinstance(value, float):
        error = metrics.get(f"{name}_stderr,{kind}")
        shown = name if kind == "none" else f"{name} ({kind})"
        error = error if isinstance(error, float) else None
        rows.append((task, one["model"], shown, _number(value), _number(error)))
  return rows


def _number(value: float | None) -> str:
  if value is None:
    return "-"
  return f"{value:,.4f}" if abs(value) < 1000 else f"{value:.5g}"


def _interval(found: Difference) -> str:
  return "-" if found.interval is None else ", ".join(map(_signed, found.interval))


def _signed(value: float) -> str:
  return f"{value:+.4f}" if abs(value) < 1000 else f"{value:+.4g}"
