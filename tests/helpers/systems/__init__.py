"""Residual systems by family: equations in float64 numpy, cases, costs by hand, bad options.

Written from the papers, sharing no code with the library. A new family is one module here, and
every test of tests/combinators walks it.
"""

import functools

from tests.helpers.systems import (
  attn_res,
  dca,
  deep_delta,
  delta_attn_res,
  dense,
  depth_attention,
  elc,
  hyper_connections,
  laurel,
  mhc,
  muddformer,
  plain,
  scaled,
  speedrun,
)

_FAMILIES = (
  plain,
  scaled,
  speedrun,
  laurel,
  attn_res,
  delta_attn_res,
  depth_attention,
  hyper_connections,
  mhc,
  deep_delta,
  dense,
  elc,
  dca,
  muddformer,
)

EQUATIONS = functools.reduce(dict.__or__, (family.EQUATIONS for family in _FAMILIES))
CASES = tuple(case for family in _FAMILIES for case in family.CASES)
STANDARD_AT_INIT = tuple(case for case in CASES if case.standard_at_init)
COSTS = functools.reduce(dict.__or__, (family.COSTS for family in _FAMILIES))
BAD_OPTIONS = tuple(bad for family in _FAMILIES for bad in family.BAD_OPTIONS)
