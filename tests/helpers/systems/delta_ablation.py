"""Ablations of Delta Attention Residuals."""

from tests.helpers.reference import depth_read
from tests.helpers.systems.attn_res import read, site_reads
from tests.helpers.systems.common import Case, Costs, D, sigmoid, sublayers
from tests.helpers.systems.delta_attn_res import gate_of


def delta_ablation(
  params, weights, x, sites, *, mode, output_gate="none", null_source=False, views="x",
  num_heads=1, eps=1e-6,
):  # fmt: skip
  """The released forward passes, mode by mode: `outs` and `streams` begin without the embedding."""
  outs, streams, first = [], [], []
  for layer, index, run in sublayers(weights, sites):
    at = layer, index
    gate = 1.0
    if mode == "pre_gated":
      gate = sigmoid(x @ params["source_gate"][at] + params["source_bias"][at])
    values = {
      "delta_additive": outs,
      "delta_replace": [*outs, x],
      "full_additive": streams,
      "full_replace": [*streams, x],
      "pre_gated": [gate * o for o in outs],
      "first_layer": [*first, x],
    }[mode]
    if null_source:
      values = [*values, gate * params["null"][at] + 0 * x]
    g = gate_of(params, at, output_gate, x)
    replaced = 0 if mode in ("delta_replace", "full_replace", "first_layer") else x

    def read_by(reader, values=values, g=g, x=x, replaced=replaced):
      w, gamma = reader["query"], reader["key_scale"]
      found = depth_read(w, gamma, values, eps, num_heads) if values else 0 * x
      return (1 - g) * x + g * (replaced + found)

    out = run(site_reads(params, layer, index, read_by, views))[1]
    x = x + out
    outs.append(out)
    streams.append(x)
    if layer == 0 and index == len(sites) - 1:
      first = [out]
  return x


EQUATIONS = {"delta_ablation": delta_ablation}


def _case(mode, dead, learns=("query",), **options):
  names = ["query", "key_scale"]
  if "views" in options:
    names, learns = [*names, "view_query", "view_key_scale"], (*learns, "view_query")
  dead = dict.fromkeys(names, dead) | {name: ((0,),) for name in names[2:]}
  if mode == "pre_gated":
    dead |= {"source_gate": ((0, 0),), "source_bias": ((0, 0),)}
  if "output_gate" in options:
    gates = {"alpha": ("alpha",), "scalar": ("gate_bias",), "vector": ("gate_bias", "gate_weight")}
    silent = ((0,),) if mode == "first_layer" else ((0, 0),)  # reads nothing but x, or nothing
    dead |= dict.fromkeys(gates[options["output_gate"]], silent)
  standard = options.get("output_gate") == "alpha"
  return Case(
    "delta_ablation", {"mode": mode, **options}, dead, standard, () if standard else learns
  )


_READ, _TWO, _LAYER = ((0, 0),), ((0, 0), (0, 1)), ((0,),)  # where no two sources differ
CASES = (
  _case("delta_additive", _TWO),
  _case("delta_replace", _READ),
  _case("full_additive", _TWO),
  _case("pre_gated", _TWO, ("query", "source_gate", "source_bias")),
  _case("first_layer", _LAYER),
  _case("delta_additive", _TWO, views="qk_v"),
  _case("full_replace", _TWO, views="qk_v"),
  _case("delta_replace", _READ, num_heads=2, output_gate="scalar"),
  _case("full_additive", _TWO, output_gate="alpha"),
  _case("full_additive", _READ, (), null_source=True),
  _case("pre_gated", _TWO, (), num_heads=4, output_gate="vector"),
  _case("first_layer", _LAYER, output_gate="vector"),
)

_QUERIES = 4 * 2 * D
_REPLACES, _ADDS = 4 * (3 + 1) * D, 4 * (2 + 1) * D  # difference, gate, sum; and the stream's sum
COSTS = {  # L = 2, two sites; the embedding is weighed too, with zero
  ("delta_ablation",): Costs(_QUERIES, 6 * D, sum(map(read, (1, 2, 3, 4))) + _ADDS),
  ("delta_ablation", ("mode", "delta_replace")): Costs(
    _QUERIES, 6 * D, sum(map(read, (2, 3, 4, 5))) + _REPLACES
  ),
  ("delta_ablation", ("mode", "pre_gated")): Costs(  # one gate for all sources
    _QUERIES + 4 * (D**2 + D),
    6 * D,
    sum(map(read, (1, 2, 3, 4))) + 4 * (2 * D**2 + D) + 10 * D + _ADDS,
  ),
  ("delta_ablation", ("mode", "first_layer")): Costs(  # writes choose which output is kept
    _QUERIES, 2 * D, 2 * read(1, 1) + 2 * read(2) + _REPLACES + 4 * D
  ),
}

BAD_OPTIONS = (
  (
    "delta_ablation",
    {"mode": "delta"},
    ["mode='delta'", "delta_additive, delta_replace, full_additive"],
  ),
  (
    "delta_ablation",
    {"implementation": "mosaic_tpu"},
    ["implementation='mosaic_tpu'", "auto, reference"],
  ),
)
