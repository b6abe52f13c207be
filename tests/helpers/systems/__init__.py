"""Residual systems by family: equations in float64 numpy, cases, costs by hand, bad options.

They are written from the papers and share no code with the library. A new family is one module in
this folder; it is found here, and every test of tests/combinators walks it.
"""

import functools
import importlib
import pkgutil

_FAMILIES = tuple(
  importlib.import_module(f"{__name__}.{module.name}")
  for module in pkgutil.iter_modules(__path__)
  if module.name != "common"
)

EQUATIONS = functools.reduce(dict.__or__, (family.EQUATIONS for family in _FAMILIES))
CASES = tuple(case for family in _FAMILIES for case in family.CASES)
STANDARD_AT_INIT = tuple(case for case in CASES if case.standard_at_init)
COSTS = functools.reduce(dict.__or__, (family.COSTS for family in _FAMILIES))
BAD_OPTIONS = tuple(bad for family in _FAMILIES for bad in family.BAD_OPTIONS)
