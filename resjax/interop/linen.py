"""Residual combinators in Flax Linen models, through `flax.nnx.bridge`."""

from typing import Any

from flax import nnx

from resjax import combinators


def combinator(name: str, **sizes_and_options: Any) -> combinators.Combinator:
  """Returns a combinator whose parameters belong to the Linen module that calls this.

    class Model(linen.Module):
      @linen.compact
      def __call__(self, x):
        c = combinator("attn_res", num_layers=12, d_model=768)
        state = c.init(x)  # The rest is as in `resjax.combinators.Combinator`.

  The parameters lie in the collection `params` of that module under `combinator`, and are drawn
  with the key `params`. Call it once, in a compact method, and loop over layers in Python.

  Args:
    name: one of `combinators.names()`.
    **sizes_and_options: the arguments of `combinators.build`, without rngs.

  Raises:
    ValueError: The name or an option is unknown, or an option is out of range.
  """
  lifted = nnx.bridge.to_linen(combinators.build, name, name="combinator", **sizes_and_options)
  # One call returns the bound combinator itself. If each read and write were a call of its own,
  # each would make the combinator anew.
  return lifted(nnx_method=lambda bound: bound)
