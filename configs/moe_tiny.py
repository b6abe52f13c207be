"""tiny with a mixture of experts: 8 of them in each layer, 2 for each token.

  resjax train --config=moe_tiny

The two experts of a token are together as wide as the MLP of `tiny`, so that a token takes as many
FLOPs, and the model has more than twice as many parameters; docs/moe.md.

Hardware: 2 CPU cores, 2 GB of memory. Time: minutes, data included.
"""

from ml_collections import ConfigDict

from configs import tiny


def get_config() -> ConfigDict:
  c = tiny.get_config()
  c.workdir = "runs/moe_tiny"
  c.model.moe.update(num_experts=8, num_experts_per_tok=2, expert_dim=192)
  return c
