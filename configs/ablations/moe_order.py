"""Does the order of residual systems change between dense decoders and mixtures of experts?

The argument is `dense` (default) or `moe`, each a sweep of its own: the same seven systems in six
layers of 96. A token goes through as many FLOPs in both, but for the router's 0.6 %: the MLP of 256
is one, or 2 of 8 experts of 128 each, so that the layers of `moe` have 3.2 times the parameters.

  resjax sweep --config=ablations/moe_order
  resjax sweep --config=ablations/moe_order:moe
  .venv/bin/python -m docs.findings.moe_order runs

All else is as in `depthbench_1m`, with a rate of its own for each system in both sweeps. The last
command gives the verdict, planned before the runs at a margin of 0.25 %: the order changes if two
systems stand in one order in dense decoders and in the other in mixtures, both for sure (Holm over
all pairs); it does not if no two means are reversed, or only such as are within the margin for sure
in one of both. All arms have five seeds; only what diverged is left out.

Hardware: 2 CPU cores, 1 GB of memory. Time: about 3 hours of CPU time in all, tuning included.
Expect: `gated_residual` has the lowest mean in both (docs/findings/moe_order.md). 256,000 tokens
a run say how systems begin to train, not where they end; experts see a quarter or less of them.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations
from configs.ablations import depthbench_1m

SYSTEMS = (
  "standard", "block_attn_res", "attn_res", "hyper_connections", "mhc", "independent_hc",
  "gated_residual",
)  # fmt: skip
PLAN = depthbench_1m.PLAN | {"contrasts": tuple((name, "standard") for name in SYSTEMS[1:])}


def get_config(kind: str = "dense") -> ConfigDict:
  c = depthbench_1m.get_config("6")
  c.workdir = "runs/moe_order"
  c.model.update(d_model=96, num_heads=4, num_kv_heads=2, mlp_dim=256)
  c.model.residual.block_attn_res = {"layers_per_block": 2}
  ablations.set_kind(c, kind)
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  for name in SYSTEMS:
    yield name, {"model.residual.name": name}
