"""The factors by which models multiply their stream, as tables of HTML and for the terminal."""

from collections.abc import Sequence
from html import escape

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resjax.analysis.stream_factors import StreamFactors, concentration

_NOTE = (
  "A site writes x ← α x + f(x). α: the mean over tokens and channels, and its standard deviation. "
  "Weight: what is left of the write in the final state, the product of all later mean factors. "
  "Attenuation: the share of its input that the whole layer takes away, 0 if it amplifies."
)


def html(factors: StreamFactors) -> str:
  """Returns a table with a row for the embedding and for every site of every layer."""
  head = "".join(
    f'<th scope="col">{name}</th>' for name in ("write", "α", "±", "weight", "attenuation")
  )
  rows = [_row("embedding", "", "", f"{factors.embedding_weight:.3f}", "")]
  for layer, attenuation in enumerate(factors.attenuations):
    for number, site in enumerate(factors.sites):
      values = (
        f"{array[layer, number]:.3f}"
        for array in (factors.means, factors.deviations, factors.write_weights)
      )
      last = number == len(factors.sites) - 1
      rows.append(_row(f"layer {layer} {site}", *values, f"{attenuation:.3f}" if last else ""))
  share = factors.last_share
  located = "too little attenuation to locate" if share is None else f"{share:.0%} of all"
  even = f"{1 / len(factors.means):.0%}"
  return (
    f'<p class="facts">{_NOTE} The last layer has {located} (even: {even}).</p>\n'
    '<div class="scroll" tabindex="0" role="region" aria-label="Factors of the stream">'
    f'<table class="summary"><thead><tr>{head}</tr></thead>\n<tbody>{"".join(rows)}</tbody>'
    "</table></div>"
  )


def _row(name: str, *cells: str) -> str:
  return f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{c}</td>" for c in cells)}</tr>'


def show(found: Sequence[tuple[str, StreamFactors]], console: Console) -> None:
  """Prints where models attenuate the stream, given their names and factors; may be none."""
  if not found:
    return
  table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  for heading in ("model", "attenuation by layer", "last layer", "weight of the embedding"):
    table.add_column(heading, overflow="fold")
  for model, factors in found:
    shares = " ".join(f"{a:.3f}" for a in factors.attenuations)
    table.add_row(
      Text(model), shares, _percent(factors.last_share), f"{factors.embedding_weight:.3f}"
    )
  console.print(table)
  if len({len(factors.means) for _, factors in found}) == 1 < len(found):
    console.print(_in_words([factors for _, factors in found]), soft_wrap=True, highlight=False)


def _in_words(models: Sequence[StreamFactors]) -> str:
  """Returns whether several models attenuate the stream at their last layer, in a sentence."""
  one, layers = concentration(models), len(models[0].means)
  interval = "" if one.interval is None else ", mean 95% {:.0%} to {:.0%}".format(*one.interval)
  return (
    f"attenuation at the last layer: {one.verdict} (shares {', '.join(map(_percent, one.shares))}"
    f"{interval}; even: {1 / layers:.0%}; the largest in {one.last_is_largest} of {len(models)})"
  )


def _percent(share: float | None) -> str:
  return "too little" if share is None else f"{share:.0%}"
