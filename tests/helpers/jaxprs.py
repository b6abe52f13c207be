"""The equations of a traced program."""

import jax


def equations(jaxpr):
  """Yields the equations of a program with everything that it calls."""
  for equation in jaxpr.eqns:
    yield equation
    for leaf in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns")):
      inner = getattr(leaf, "jaxpr", leaf)
      if hasattr(inner, "eqns"):
        yield from equations(inner)
