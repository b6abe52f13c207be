"""What every combinator owes, as checks: functions of a `Subject` that raise AssertionError."""

from collections.abc import Callable

from resjax.testing import claims, layers, tokens
from resjax.testing.subject import Subject

Check = Callable[[Subject], None]

# By the name that a failure gives; in the order in which they run.
CHECKS: dict[str, Check] = {
  check.__name__: check
  for check in (
    claims.protocol, claims.declarations, claims.counts,
    layers.loop, layers.loop_with_remat, layers.scan, layers.scan_with_remat,
    layers.scan_that_keeps_products, layers.gradients, layers.bfloat16, layers.fused_norms,
    tokens.causal, tokens.decoding, layers.mesh, claims.init, claims.early_output,
  )
}  # fmt: skip
