"""Attention Residuals."""

from tests.helpers.reference import depth_read, rms
from tests.helpers.systems.common import Case, Costs, D, sublayers

VIEWS = {"x": "", "qk_v": "v", "qkv": "kv"}  # the views with a reader beside that of x


def site_reads(params, layer, index, read, views="x"):
  """What a site reads, by view: read(w, γ). Only the first site may have readers of k and v."""
  found = {"x": read(params["query"][layer, index], params["key_scale"][layer, index])}
  if index == 0:
    for number, view in enumerate(VIEWS[views]):
      at = layer, number
      found[view] = read(params["view_query"][at], params["view_key_scale"][at])
  return found


def attn_res(params, weights, x, sites, *, views="x", num_heads=1, eps=1e-6):
  """Full: section 3.1; heads as in arXiv 2607.27230; views as in arXiv 2608.01075 and Inkling 2."""
  values = [x]

  def read(w, gamma):
    return depth_read(w, gamma, values, eps, num_heads)

  for layer, index, run in sublayers(weights, sites):
    values.append(run(site_reads(params, layer, index, read, views))[1])
  return depth_read(params["final_query"], params["final_key_scale"], values, eps, num_heads)


def block_attn_res(
  params,
  weights,
  x,
  sites,
  *,
  layers_per_block,
  rms_block=False,
  two_phase="",
  views="x",
  num_heads=1,
  eps=1e-6,
):
  """Block: section 3.2, in the paper's unit, S sublayers per block; outs: of the running block.

  Two phases are the same function.
  """
  per_block = layers_per_block * len(sites)
  blocks = [x]  # b_0 = e
  outs = []

  def read(w, gamma):
    values = [*blocks, sum(outs)] if outs else blocks
    return depth_read(w, gamma, values, eps, num_heads)

  def completed():
    return sum(rms(o, eps) if rms_block else o for o in outs)

  for i, (layer, index, run) in enumerate(sublayers(weights, sites)):
    if i % per_block == 0 and outs:
      blocks.append(completed())
      outs = []
    outs.append(run(site_reads(params, layer, index, read, views))[1])
  values = [*blocks, completed()]
  return depth_read(params["final_query"], params["final_key_scale"], values, eps, num_heads)


EQUATIONS = {"attn_res": attn_res, "block_attn_res": block_attn_res}

FIRST = {"query": ((0, 0),), "key_scale": ((0, 0),)}  # the first read has one source
_QUERIES = {"dead": FIRST, "learns_at_init": ("query", "final_query")}
_FRESH = {"standard_at_init": True, **_QUERIES}
_OF_VIEWS = {"view_query": ((0,),), "view_key_scale": ((0,),)}
_VIEWS = {
  "standard_at_init": True,
  "dead": FIRST | _OF_VIEWS,
  "learns_at_init": ("query", "view_query", "final_query"),
}

CASES = (
  Case("attn_res", **_FRESH),
  Case("attn_res", {"num_heads": 2}, **_FRESH),
  Case("attn_res", {"views": "qkv"}, **_VIEWS),
  Case("attn_res", {"views": "qk_v", "num_heads": 2}, **_VIEWS),
  *(Case("block_attn_res", {"layers_per_block": length}, **_FRESH) for length in range(1, 6)),
  Case("block_attn_res", {"layers_per_block": 2, "num_heads": 8}, **_FRESH),
  Case("block_attn_res", {"layers_per_block": 2, "rms_block": True}, **_QUERIES),
  Case("block_attn_res", {"layers_per_block": 2, "two_phase": "always"}, **_FRESH),
  Case("block_attn_res", {"layers_per_block": 2, "views": "qk_v"}, **_VIEWS),
  Case("block_attn_res", {"layers_per_block": 2, "views": "qkv", "two_phase": "always"}, **_VIEWS),
  Case(
    "block_attn_res",
    {"layers_per_block": 3, "rms_block": True, "two_phase": "always"},
    **_QUERIES,
  ),
)


def read(num_sources, num_empty=0):
  """FLOPs of a read: per source square, sum, product with the query, sum, weight; one sum of all.

  A running sum in which nothing is yet is zero for all tokens, and costs its weight and the sum.
  """
  return (6 * num_sources - 1 + 2 * num_empty) * D


_PARAMETERS = 2 * D * 5  # of four sublayers and the output
COSTS = {  # L = 2, two sites; the output reads last
  ("attn_res",): Costs(_PARAMETERS, 5 * D, sum(map(read, (1, 2, 3, 4, 5)))),
  ("attn_res", ("num_heads", 3)): Costs(_PARAMETERS, 5 * D, sum(map(read, (1, 2, 3, 4, 5)))),
  ("attn_res", ("views", "qkv")): Costs(  # the attention reads three times
    _PARAMETERS + 2 * 2 * 2 * D, 5 * D, sum(map(read, (1, 1, 1, 2, 3, 3, 3, 4, 5)))
  ),
  ("block_attn_res", ("layers_per_block", 1)): Costs(
    _PARAMETERS, 4 * D, read(1, 1) + read(2) + read(2, 1) + read(3) + read(3) + 4 * D
  ),
  ("block_attn_res", ("layers_per_block", 2)): Costs(
    _PARAMETERS, 3 * D, read(1, 1) + 3 * read(2) + read(2) + 4 * D
  ),
  ("block_attn_res", ("layers_per_block", 2), ("rms_block", True)): Costs(
    _PARAMETERS,
    4 * D,
    read(1, 1) + 3 * read(2) + read(2) + 4 * (1 + 2 + 1 + 1) * D,  # add; square-sum, scale, add
  ),
}

BAD_OPTIONS = (  # for 3 layers, D = 8
  ("block_attn_res", {"rms_block": "False"}, ["rms_block='False'", "True, False"]),
  ("attn_res", {"layers_per_block": 2}, ["'layers_per_block'", "'attn_res'", "num_heads, eps"]),
  ("block_attn_res", {"two_phase": True}, ["two_phase=True", "auto, always, never"]),
  (
    "block_attn_res",
    {"two_phase": "always", "num_heads": 2},
    ["two_phase='always'", "auto, never", "num_heads=2"],
  ),
  ("attn_res", {"views": "kv"}, ["views='kv'", "x, qk_v, qkv"]),
  ("attn_res", {"implementation": "triton"}, ["implementation='triton'", "auto", "reference"]),
  ("attn_res", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
  ("attn_res", {"num_heads": 3}, ["num_heads=3", "divisors of d_model=8"]),
  ("attn_res", {"num_heads": 0}, ["num_heads=0", "divisors of d_model=8"]),
  ("block_attn_res", {"eps": -1.0}, ["eps=-1.0", "eps > 0"]),
  ("block_attn_res", {"num_heads": -2}, ["num_heads=-2", "divisors of d_model=8"]),
  ("block_attn_res", {"layers_per_block": 0}, ["layers_per_block=0", "1..3"]),
  ("block_attn_res", {"layers_per_block": 4}, ["layers_per_block=4", "1..3"]),
)
