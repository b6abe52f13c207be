"""How calls are checked against annotations, and which modules are: `tests/shapes_test.py`."""

import beartype

# Functions of the public doors. Modules of pytrees are not checked: JAX fills these with objects
# that are no arrays.
CHECKED = [
  "resjax.combinators.numerics",
  "resjax.combinators.systems",
  "resjax.models.decoder",
  "resjax.models.decoding",
  "resjax.models.depth",
  "resjax.models.layer",
  "resjax.models.loss",
  "resjax.models.sampling",
  "resjax.nn.attention",
  "resjax.nn.linear",
  "resjax.nn.norm",
  "resjax.kernels.sums",
  "resjax.kernels.depth_attention.api",
  "resjax.kernels.depth_attention.two_phase",
  "resjax.kernels.depth_attention.weighted_sum",
  "resjax.kernels.streams.api",
  "resjax.kernels.streams.doubly_stochastic",
  "resjax.kernels.gated_streams.api",
  "resjax.kernels.self_attention.api",
  "resjax.kernels.self_attention.reference",
]

typed = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))  # an int is a float
