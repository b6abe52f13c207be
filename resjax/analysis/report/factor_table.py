"""The factors by which a model multiplies its stream, as a table of HTML."""

from html import escape

from resjax.analysis.stream_factors import StreamFactors

_NOTE = (
  "A site writes x ← α x + f(x). α: the mean over tokens and channels, and its standard deviation. "
  "Weight: what is left of the write in the final state, the product of all later mean factors. "
  "Attenuation: the share of its input that the whole layer takes away, 0 if it amplifies."
)


def factor_table(factors: StreamFactors) -> str:
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
