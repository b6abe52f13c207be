"""The residual systems, one class each; `resjax.combinators` exports them."""
