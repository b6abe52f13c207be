"""Attention Residuals."""

from tests.helpers.reference import depth_read
from tests.helpers.systems.common import Case, sublayers


def attn_res(params, weights, x, sites, *, eps=1e-6):
  """Full: section 3.1."""
  values = [x]
  for layer, index, run in sublayers(weights, sites):
    w, gamma = params["query"][layer, index], params["key_scale"][layer, index]
    values.append(run(depth_read(w, gamma, values, eps))[1])
  return depth_read(params["final_query"], params["final_key_scale"], values, eps)


def block_attn_res(params, weights, x, sites, *, layers_per_block, eps=1e-6):
  """Block: section 3.2, in the paper's unit, S sublayers per block."""
  per_block = layers_per_block * len(sites)
  blocks = [x]  # b_0 = e
  partial = None
  for i, (layer, index, run) in enumerate(sublayers(weights, sites)):
    if i % per_block == 0 and partial is not None:
      blocks.append(partial)
      partial = None
    values = blocks if partial is None else [*blocks, partial]
    w, gamma = params["query"][layer, index], params["key_scale"][layer, index]
    out = run(depth_read(w, gamma, values, eps))[1]
    partial = out if partial is None else partial + out
  return depth_read(params["final_query"], params["final_key_scale"], [*blocks, partial], eps)


EQUATIONS = {"attn_res": attn_res, "block_attn_res": block_attn_res}

FIRST = {"query": ((0, 0),), "key_scale": ((0, 0),)}  # the first read has one source
_FRESH = {"dead": FIRST, "standard_at_init": True, "learns_at_init": ("query", "final_query")}

CASES = (
  Case("attn_res", **_FRESH),
  *(Case("block_attn_res", {"layers_per_block": length}, **_FRESH) for length in range(1, 6)),
)

FLOPS = {  # L = 2, D = 3, two sites; a source and reader costs 18, a stream D per operation
  ("attn_res",): 18 * (1 + 2 + 3 + 4 + 5),
  ("block_attn_res", ("layers_per_block", 1)): 18 * (1 + 2 + 2 + 3 + 3) + 4 * 3,
  ("block_attn_res", ("layers_per_block", 2)): 18 * (1 + 2 + 2 + 2 + 2) + 4 * 3,
}

BAD_OPTIONS = (  # for 3 layers
  ("attn_res", {"layers_per_block": 2}, ["'layers_per_block'", "'attn_res'", "allowed: eps"]),
  ("attn_res", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
  ("block_attn_res", {"eps": -1.0}, ["eps=-1.0", "eps > 0"]),
  ("block_attn_res", {"layers_per_block": 0}, ["layers_per_block=0", "1..3"]),
  ("block_attn_res", {"layers_per_block": 4}, ["layers_per_block=4", "1..3"]),
)
