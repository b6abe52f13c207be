"""Attention Residuals."""

import numpy as np

from tests.helpers.reference import heads, rms
from tests.helpers.systems.common import Case, Costs, D, sigmoid, sublayers

PARAMETERS = ("query", "key_scale", "log_scale", "query_weight", "logit")  # of a reader

VIEWS = {"x": "", "qk_v": "v", "qkv": "kv"}  # the views with a reader beside that of x


def reader(params, prefix="", at=()):
  return {name: params[prefix + name][at] for name in PARAMETERS if prefix + name in params}


def read_sources(
  reader,
  sources,
  newest,
  num_heads=1,
  eps=1e-6,
  value_norm=False,
  key_norm="gain",
  key_rank=0,
  scale="one",
  temperature=1.0,
  weights="softmax",
  dynamic_query=False,
  window=0,
):
  """h = Σ_j a_j u_j, a_j of s_j = c q · k_j / temperature.

  Values and scale as in Inkling 2, the rank of keys as in arXiv 2607.09694, the rest as in the
  paper's ablations. The published text leaves open what is projected to a query: here it is
  RMS(newest).
  """
  chosen = [j for j in range(len(sources)) if not window or j == 0 or j >= len(sources) - window]
  width = sources[0].shape[-1]
  rank = key_rank or width
  k = {j: sources[j][..., width - rank :] for j in chosen}
  if key_norm != "none":
    k = {j: reader.get("key_scale", 1.0) * rms(v, eps) for j, v in k.items()}
  normalised = value_norm and len(sources) > 1
  u = {j: rms(sources[j], eps) if normalised else sources[j] for j in chosen}
  h = np.zeros_like(sources[0])
  for of_key, of_value in zip(heads(rank, num_heads), heads(width, num_heads), strict=True):
    if weights == "static":
      s = np.array([reader["logit"][j] + 0 * sources[j][..., 0] for j in chosen])
    else:
      q = reader["query"]
      if dynamic_query:
        q = q + rms(newest, eps) @ reader["query_weight"]
      c = {"rsqrt": (rank / num_heads) ** -0.5, "learned": np.exp(reader.get("log_scale", 0))}
      s = np.array([np.sum((q * k[j])[..., of_key], axis=-1) for j in chosen]) * c.get(scale, 1)
      s = s / temperature
    if weights == "sigmoid":
      a = sigmoid(s)
    else:
      a = np.exp(s - s.max(axis=0))
      a = a / a.sum(axis=0)
    for share, j in zip(a, chosen, strict=True):
      h[..., of_value] += share[..., None] * u[j][..., of_value]
  return h


def site_reads(params, layer, index, read, views="x"):
  """What a site reads, by view: read(reader). Only the first site may have readers of k and v."""
  found = {"x": read(reader(params, at=(layer, index)))}
  if index == 0:
    for number, view in enumerate(VIEWS[views]):
      found[view] = read(reader(params, "view_", (layer, number)))
  return found


def attn_res(params, weights, x, sites, /, *, views="x", two_phase="", **rule):
  """Full: section 3.1; heads as in arXiv 2607.27230; views as in arXiv 2608.01075 and Inkling 2.

  Two phases are the same function.
  """
  sources = [x]

  def read(reader):
    return read_sources(reader, sources, sources[-1], **rule)

  for layer, index, run in sublayers(weights, sites):
    sources.append(run(site_reads(params, layer, index, read, views))[1])
  return read(reader(params, "final_"))


def block_attn_res(
  params,
  weights,
  x,
  sites,
  /,
  *,
  layers_per_block,
  first_block="free",
  rms_block=False,
  two_phase="",
  views="x",
  eps=1e-6,
  **rule,
):
  """Block: section 3.2, in the paper's unit, S sublayers per block; outs: of the running block.

  Two phases are the same function.
  """
  per_block = layers_per_block * len(sites)
  blocks = [x]  # b_0 = e
  outs = []

  def read(reader):
    sources = [*blocks, sum(outs)] if outs else blocks
    if first_block == "uniform" and len(blocks) == 1:
      reader = {n: 0 * p if n in ("query", "query_weight") else p for n, p in reader.items()}
    return read_sources(reader, sources, sum(outs, 0 * x), eps=eps, **rule)

  def completed():
    return sum(rms(o, eps) if rms_block else o for o in outs)

  for i, (layer, index, run) in enumerate(sublayers(weights, sites)):
    if i % per_block == 0 and outs:
      blocks.append(completed())
      outs = []
    outs.append(run(site_reads(params, layer, index, read, views))[1])
  sources = [*blocks, completed()]
  return read_sources(reader(params, "final_"), sources, sources[-1], eps=eps, **rule)


EQUATIONS = {"attn_res": attn_res, "block_attn_res": block_attn_res}

FIRST = {"query": ((0, 0),), "key_scale": ((0, 0),)}  # the first read has one source
_QUERIES = {"dead": FIRST, "learns_at_init": ("query", "final_query")}
_FRESH = {"standard_at_init": True, **_QUERIES}
_OF_VIEWS = {"view_query": ((0,),), "view_key_scale": ((0,),)}
_ONE_SOURCE = {"log_scale": ((0, 0),), "query_weight": ((0, 0),), **FIRST}
_MISSING = [(i // 2, i % 2, j) for i in range(10) for j in range(i + 1, 11)]  # sources, in 5 layers
_INKLING = {"value_norm": True, "key_norm": "plain", "scale": "rsqrt"}
_SCORED = {"weights": "sigmoid", "key_norm": "none", "key_rank": 3, "dynamic_query": True}
_VIEWS = {
  "standard_at_init": True,
  "dead": FIRST | _OF_VIEWS,
  "learns_at_init": ("query", "view_query", "final_query"),
}


def _of(dead, *names):
  return {name: dead[name] for name in names}


CASES = (
  Case("attn_res", **_FRESH),
  Case("attn_res", {"num_heads": 2}, **_FRESH),
  Case("attn_res", {"two_phase": "always"}, **_FRESH),
  Case("attn_res", {"views": "qkv", "two_phase": "always"}, **_VIEWS),
  Case("attn_res", {"views": "qkv"}, **_VIEWS),
  Case("attn_res", {"views": "qk_v", "num_heads": 2}, **_VIEWS),
  Case("attn_res", _INKLING, dead=_of(FIRST, "query"), learns_at_init=("query", "final_query")),
  Case("attn_res", {"temperature": 8**0.5}, **_FRESH),
  Case("attn_res", {"window": 2}, **_QUERIES),
  Case("attn_res", {"key_rank": 3}, **_FRESH),
  Case(
    "attn_res",
    {"scale": "learned", "num_heads": 2, "dynamic_query": True},
    standard_at_init=True,
    dead=_ONE_SOURCE,
    learns_at_init=("query", "query_weight", "final_query", "final_query_weight"),
  ),
  Case(
    "attn_res",
    {"weights": "static", "views": "qk_v"},
    standard_at_init=True,
    dead={
      "logit": ((0, 0), *_MISSING),
      "view_logit": ((0,), *(at for at in _MISSING if at[1] == 0)),
    },
    learns_at_init=("logit", "view_logit", "final_logit"),
  ),
  Case(  # a lone source has a weight, too
    "attn_res",
    _SCORED,
    standard_at_init=True,
    learns_at_init=("query", "query_weight", "final_query", "final_query_weight"),
  ),
  *(Case("block_attn_res", {"layers_per_block": length}, **_FRESH) for length in range(1, 6)),
  Case("block_attn_res", {"layers_per_block": 2, "num_heads": 8}, **_FRESH),
  Case("block_attn_res", {"layers_per_block": 2, "rms_block": True}, **_QUERIES),
  Case("block_attn_res", {"layers_per_block": 2, "two_phase": "always"}, **_FRESH),
  Case("block_attn_res", {"layers_per_block": 2, "views": "qk_v"}, **_VIEWS),
  Case("block_attn_res", {"layers_per_block": 2, "views": "qkv", "two_phase": "always"}, **_VIEWS),
  Case(
    "block_attn_res",
    {"layers_per_block": 2, "views": "qkv", **_INKLING},
    dead=_of(FIRST | _OF_VIEWS, "query", "view_query"),
    learns_at_init=("query", "view_query", "final_query"),
  ),
  Case(  # an empty running sum makes no query
    "block_attn_res",
    {"layers_per_block": 2, **_SCORED},
    standard_at_init=True,
    dead={"query_weight": ((0, 0), (2, 0), (4, 0))},
    learns_at_init=("query", "query_weight", "final_query", "final_query_weight"),
  ),
  Case(
    "block_attn_res",
    {
      "layers_per_block": 3,
      "scale": "learned",
      "temperature": 8**0.5,
      "views": "qk_v",
      "two_phase": "always",
    },
    standard_at_init=True,
    dead={"log_scale": ((0, 0),), "view_log_scale": ((0,),), **FIRST, **_OF_VIEWS},
    learns_at_init=("query", "view_query", "final_query"),
  ),
  *(
    Case(  # of five layers, two have no queries
      "block_attn_res",
      {"layers_per_block": 2, "first_block": "uniform", **options},
      standard_at_init=True,
      dead={name: ((0,), (1,)) for name in ("query", "key_scale", *names)},
      learns_at_init=("query", "final_query"),
    )
    for options, names in (
      ({}, ()),
      ({"two_phase": "always", "views": "qkv"}, ("view_query", "view_key_scale")),
      ({"dynamic_query": True}, ("query_weight",)),
    )
  ),
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
  ("attn_res", ("value_norm", True)): Costs(  # square and sum once more
    _PARAMETERS, 5 * D, sum(read(n) + 2 * n * D for n in (1, 2, 3, 4, 5))
  ),
  ("attn_res", ("key_rank", 3)): Costs(2 * 3 * 5, 5 * D, sum((2 * n - 1) * D for n in range(1, 6))),
  ("attn_res", ("weights", "static")): Costs(
    5 * 5, 5 * D, sum((2 * n - 1) * D for n in (1, 2, 3, 4, 5))
  ),
  ("attn_res", ("dynamic_query", True)): Costs(  # norm, product, sum, gain
    _PARAMETERS + 5 * D**2, 5 * D, sum(map(read, (1, 2, 3, 4, 5))) + 5 * (2 * D**2 + 5 * D)
  ),
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
  ("block_attn_res", {"first_block": "stream"}, ["first_block='stream'", "free, uniform"]),
  (
    "block_attn_res",
    {"first_block": "uniform", "layers_per_block": 3},
    ["first_block='uniform'", "free where there is one block"],
  ),
  ("attn_res", {"views": "kv"}, ["views='kv'", "x, qk_v, qkv"]),
  ("attn_res", {"value_norm": "rms"}, ["value_norm='rms'", "True, False"]),
  ("attn_res", {"key_norm": "rms"}, ["key_norm='rms'", "gain, plain, none"]),
  ("attn_res", {"scale": 1}, ["scale=1", "one, rsqrt, learned"]),
  ("attn_res", {"temperature": 0.0}, ["temperature=0.0", "temperature > 0"]),
  ("attn_res", {"weights": "relu"}, ["weights='relu'", "softmax, sigmoid, static"]),
  ("attn_res", {"dynamic_query": "True"}, ["dynamic_query='True'", "True, False"]),
  ("attn_res", {"key_rank": 9}, ["key_rank=9", "0 (all channels)..8"]),
  ("attn_res", {"key_rank": 4, "num_heads": 2}, ["key_rank=4", "0 with num_heads=2"]),
  ("attn_res", {"window": -1}, ["window=-1", "window >= 0"]),
  ("attn_res", {"weights": "static", "key_norm": "none"}, ["weights='static'", "key_norm='none'"]),
  ("block_attn_res", {"weights": "static"}, ["weights='static'", "softmax, sigmoid"]),
  (
    "attn_res",
    {"weights": "sigmoid", "implementation": "mosaic_gpu"},
    ["implementation='mosaic_gpu'", "auto, reference with weights='sigmoid'"],
  ),
  (
    "block_attn_res",
    {"value_norm": True, "two_phase": "always"},
    ["two_phase='always'", "auto, never with value_norm=True"],
  ),
  ("attn_res", {"implementation": "triton"}, ["implementation='triton'", "auto", "reference"]),
  ("attn_res", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
  ("attn_res", {"num_heads": 3}, ["num_heads=3", "divisors of d_model=8"]),
  ("attn_res", {"num_heads": 0}, ["num_heads=0", "divisors of d_model=8"]),
  ("block_attn_res", {"eps": -1.0}, ["eps=-1.0", "eps > 0"]),
  ("block_attn_res", {"num_heads": -2}, ["num_heads=-2", "divisors of d_model=8"]),
  ("block_attn_res", {"layers_per_block": 0}, ["layers_per_block=0", "1..3"]),
  ("block_attn_res", {"layers_per_block": 4}, ["layers_per_block=4", "1..3"]),
)
