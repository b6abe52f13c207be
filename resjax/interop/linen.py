"""Combinators in Flax Linen models, through `flax.nnx.bridge`."""

from typing import Any

from flax import nnx

from resjax import combinators


def combinator(name: str, **sizes_and_options: Any) -> combinators.Combinator:
  """Returns a combinator whose parameters belong to the Linen module that calls this.

    class Model(linen.Module):
      @linen.compact
      def __call__(self, x):
        c = combinator("attn_res", num_layers=12, d_model=768)
        state = c.init(x)  # and on as in `resjax.combinators.Combinator`

  The parameters lie in the collection `params` of that module under `combinator`; their key is
  `params` too. Call it once, in a compact method, and loop over layers in Python.

  Args:
    name: one of `combinators.names()`.
    **sizes_and_options: as for `combinators.build`, without rngs.

  Raises:
    ValueError: an unknown name or option, or an option out of range.
  """
  lifted = nnx.bridge.to_linen(combinators.build, name, name="combinator", **sizes_and_options)
  # One call that returns the bound object itself: lifting every read and write by its own call
  # would make the combinator anew each time.
  return lifted(nnx_method=lambda bound: bound)
