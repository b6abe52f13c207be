"""Residual systems by family: equations in float64 numpy, cases, costs by hand, bad options.

Written from the papers, sharing no code with the library. A new family is one module here, and
every test of tests/combinators walks it.
"""

import functools

from tests.helpers.systems import attn_res, dca, dense, elc, muddformer, plain

_FAMILIES = (
  plain,
  attn_res,
  dense,
  elc,
  dca,
  muddformer,
)

EQUATIONS = functools.reduce(dict.__or__, (family.EQUATIONS for family in _FAMILIES))
CASES = tuple(case for family in _FAMILIES for case in family.CASES)
STANDARD_AT_INIT = tuple(case for case in CASES if case.standard_at_init)
FLOPS = functools.reduce(dict.__or__, (family.FLOPS for family in _FAMILIES))
BAD_OPTIONS = tuple(bad for family in _FAMILIES for bad in family.BAD_OPTIONS)
