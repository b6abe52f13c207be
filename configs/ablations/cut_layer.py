"""Cuts the residual path at every layer with every alpha, and compares that with learned gates.

The argument is the size, `tiny` (default) or `gpt2_124m`.

  resjax sweep --config=ablations/cut_layer
  resjax sweep --config=ablations/cut_layer:gpt2_124m \
    --config.data.corpora.web.source=FOLDER --print_commands

Both sites of the layer are cut, so that it multiplies its input by alpha² in all.

Hardware: 2 CPU cores (tiny); what configs/gpt2_124m.py says (gpt2_124m).
Time: 23 runs of 1 to 2 minutes (tiny); 41 runs of that config's time (gpt2_124m).
Expect: with gpt2_124m, after Residual Connections and the Causal Shift (arXiv 2602.14760): cuts are
very sensitive to the layer, late ones help, and a learned gate beats any of them (not measured).
tiny takes 80 steps, after which two seeds are 0.06 bits per byte apart: it shows large harm only.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations

ALPHAS = (0.0, 0.25, 0.5)
CURVES = ablations.CURVES


def get_config(size: str = "tiny") -> ConfigDict:
  c = ablations.get_config(size)
  c.workdir = f"runs/cut_layer_{size}"
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  yield "standard", {"model.residual.name": "standard"}
  yield from ablations.gates()
  yield from ablations.cuts(config, ALPHAS)
