"""The factors by which models multiply their stream, as tables of HTML and for the terminal."""

from collections.abc import Sequence

from rich.console import Console

from resjax.base import terminal
from resjax.study.analysis.report import parts
from resjax.study.analysis.stream_factors import StreamFactors, concentration

_NOTE = (
  "A site writes x ← α x + f(x). α: the mean over tokens and channels, and its standard deviation. "
  "Weight: what is left of the write in the final state, the product of all later mean factors. "
  "Attenuation: the share of its input that the whole layer takes away, 0 if it amplifies."
)


def html(factors: StreamFactors) -> str:
  """Returns a table with a row for the embedding and for every site of every layer."""
  weight = f"{factors.embedding_weight:.3f}"
  rows: list[tuple[str, ...]] = [("embedding", "", "", weight, "")]
  for layer, attenuation in enumerate(factors.attenuations):
    for number, site in enumerate(factors.sites):
      values = (
        f"{array[layer, number]:.3f}"
        for array in (factors.means, factors.deviations, factors.write_weights)
      )
      last = number == len(factors.sites) - 1
      rows.append((f"layer {layer} {site}", *values, f"{attenuation:.3f}" if last else ""))
  share = factors.last_share
  located = "too little attenuation to locate" if share is None else f"{share:.0%} of all"
  even = f"{1 / len(factors.means):.0%}"
  headings = ("write", "α", "±", "weight", "attenuation")
  return (
    f'<p class="facts">{_NOTE} The last layer has {located} (even: {even}).</p>\n'
    + parts.table("Factors of the stream", headings, rows)
  )


def show(found: Sequence[tuple[str, StreamFactors]], console: Console) -> None:
  """Prints where models attenuate the stream, given their names and factors; may be none."""
  if not found:
    return
  table = terminal.Table("model", "attenuation by layer", "last layer", "weight of the embedding")
  for model, factors in found:
    shares = " ".join(f"{a:.3f}" for a in factors.attenuations)
    weight = f"{factors.embedding_weight:.3f}"
    table.add_row(model, shares, _percent(factors.last_share), weight)
  console.print(table)
  if len({len(factors.means) for _, factors in found}) == 1 < len(found):
    terminal.say(console, _in_words([factors for _, factors in found]))


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
