"""Delta Attention Residuals."""

from tests.helpers.reference import depth_read
from tests.helpers.systems.attn_res import FIRST, read, site_reads
from tests.helpers.systems.common import Case, Costs, D, sigmoid, sublayers


def gate_of(params, at, kind, x):
  """g of the code's gates; at: (layer, site)."""
  if kind == "none":
    return 1.0
  if kind == "alpha":
    return params["alpha"][at]
  if kind == "scalar":
    return sigmoid(params["gate_bias"][at])
  return sigmoid(params["gate_bias"][at] + x @ params["gate_weight"][at])


def delta_views(
  params, at, values, x, *,
  output_gate="none", null_source=False, views="x", num_heads=1, eps=1e-6,
):  # fmt: skip
  """By view (1 - g) x + g (x + read), section 3 and the code's gates; at: (layer, site)."""
  g = gate_of(params, at, output_gate, x)
  if null_source:
    values = [params["null"][at] + 0 * x, *values]

  def read(reader):
    found = depth_read(reader["query"], reader["key_scale"], values, eps, num_heads)
    return (1 - g) * x + g * (x + found)

  return site_reads(params, *at, read, views)


def delta_attn_res(params, weights, x, sites, *, two_phase="", **options):
  values = [x]
  for layer, index, run in sublayers(weights, sites):
    out = run(delta_views(params, (layer, index), values, x, **options))[1]
    values.append(out)
    x = x + out
  return x


def delta_block_attn_res(params, weights, x, sites, *, layers_per_block, two_phase="", **options):
  """Deltas are differences of snapshots of the stream, taken where a block begins."""
  values, snapshot = [x], x
  for layer, index, run in sublayers(weights, sites):
    if index == 0 and layer > 0 and layer % layers_per_block == 0:
      values.append(x - snapshot)
      snapshot = x
    x = x + run(delta_views(params, (layer, index), values, x, **options))[1]
  return x


EQUATIONS = {"delta_attn_res": delta_attn_res, "delta_block_attn_res": delta_block_attn_res}


def _blocks(length, options=None, **known):
  """The first block has one source."""
  dead = tuple((layer,) for layer in range(length))
  options = {"layers_per_block": length, **(options or {})}
  names = ["query", "key_scale"] + ["view_query", "view_key_scale"] * ("views" in options)
  known = {"dead": dict.fromkeys(names, dead), **known}
  return Case("delta_block_attn_res", options, **known)


_STANDARD = {"dead": FIRST, "standard_at_init": True}
_LEARNS = {"learns_at_init": ("query",), **_STANDARD}

CASES = (
  Case("delta_attn_res", **_LEARNS),
  Case("delta_attn_res", {"num_heads": 2}, **_LEARNS),
  Case("delta_attn_res", {"two_phase": "always", "output_gate": "vector"}, **_LEARNS),
  Case("delta_attn_res", {"output_gate": "scalar"}, **_LEARNS),
  Case("delta_attn_res", {"output_gate": "vector"}, **_LEARNS),
  Case("delta_attn_res", {"output_gate": "alpha"}, **_STANDARD | {"learns_at_init": ("alpha",)}),
  Case("delta_attn_res", {"null_source": True}, standard_at_init=True),
  Case("delta_attn_res", {"output_gate": "vector", "null_source": True}, standard_at_init=True),
  Case(
    "delta_attn_res",
    {"views": "qk_v"},
    dead=FIRST | {"view_query": ((0,),), "view_key_scale": ((0,),)},
    standard_at_init=True,
    learns_at_init=("query", "view_query"),
  ),
  *(_blocks(length) for length in (1, 2, 5)),
  _blocks(2, {"num_heads": 4}),
  _blocks(2, {"two_phase": "always", "output_gate": "vector"}),
  _blocks(2, {"output_gate": "scalar"}),
  _blocks(2, {"output_gate": "vector"}),
  _blocks(1, {"output_gate": "alpha"}, standard_at_init=True, learns_at_init=("alpha",)),
  _blocks(2, {"output_gate": "scalar", "null_source": True}, dead={}),
  _blocks(2, {"views": "qkv", "two_phase": "always", "output_gate": "vector"}),
)

_FULL, _BLOCK = sum(map(read, (1, 2, 3, 4))), sum(map(read, (1, 1, 2, 2)))
_QUERIES = 4 * 2 * D
COSTS = {  # L = 2, two sites; the gated sum costs 2 D, also with gate 1, an addition D
  ("delta_attn_res",): Costs(_QUERIES, 6 * D, _FULL + 4 * (2 + 1) * D),
  ("delta_attn_res", ("output_gate", "scalar")): Costs(
    _QUERIES + 4, 6 * D, _FULL + 4 * (2 + 1) * D
  ),
  ("delta_attn_res", ("output_gate", "alpha")): Costs(_QUERIES + 4, 6 * D, _FULL + 4 * (2 + 1) * D),
  ("delta_attn_res", ("output_gate", "vector")): Costs(
    _QUERIES + 4 * (D**2 + D), 6 * D, _FULL + 4 * (2 * D**2 + D + 2 * D + D)
  ),
  ("delta_attn_res", ("views", "qk_v")): Costs(  # the attention reads twice
    _QUERIES + 2 * 2 * D, 6 * D, _FULL + read(1) + read(3) + (6 * 2 + 4) * D
  ),
  ("delta_attn_res", ("null_source", True)): Costs(  # the same for all tokens
    _QUERIES + 4 * D, 6 * D, sum(read(n, 1) for n in (1, 2, 3, 4)) + 4 * (2 + 1) * D
  ),
  ("delta_block_attn_res", ("layers_per_block", 1)): Costs(
    _QUERIES, 5 * D, _BLOCK + 4 * (2 + 2) * D
  ),
  ("delta_block_attn_res", ("layers_per_block", 2)): Costs(
    _QUERIES, 4 * D, 4 * read(1) + 4 * (2 + 2) * D
  ),
}

_GATES = ["none, scalar, vector, alpha"]
BAD_OPTIONS = (  # for 3 layers, D = 8
  ("delta_attn_res", {"output_gate": "tensor"}, ["output_gate='tensor'", *_GATES]),
  ("delta_attn_res", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
  ("delta_attn_res", {"num_heads": 3}, ["num_heads=3", "divisors of d_model=8"]),
  ("delta_attn_res", {"layers_per_block": 2}, ["'layers_per_block'", "output_gate, null_source"]),
  ("delta_block_attn_res", {"output_gate": ""}, ["output_gate=''", *_GATES]),
  ("delta_block_attn_res", {"num_heads": 16}, ["num_heads=16", "divisors of d_model=8"]),
  ("delta_block_attn_res", {"layers_per_block": 0}, ["layers_per_block=0", "1..3"]),
  ("delta_block_attn_res", {"layers_per_block": 4}, ["layers_per_block=4", "1..3"]),
  *(
    (
      name,
      {"two_phase": "always", "null_source": True},
      ["two_phase='always'", "auto, never", "null_source=True"],
    )
    for name in ("delta_attn_res", "delta_block_attn_res")
  ),
)
