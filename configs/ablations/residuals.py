"""Every residual combinator with its defaults, and the variants of gates and depth blocks.

The argument is the size, `tiny` (default) or `gpt2_124m`.

  resjax sweep --config=ablations/residuals
  resjax sweep --config=ablations/residuals:gpt2_124m \
    --config.data.corpora.web.source=FOLDER --print_commands

Hardware: 2 CPU cores (tiny); what configs/gpt2_124m.py says (gpt2_124m).
Time: 29 runs of 1 to 2 minutes (tiny); 31 runs of that config's time (gpt2_124m).
Expect: tiny falls from 3.5 to about 2.4 bits per byte in its 80 steps. Two seeds of `standard` were
0.06 apart; block_attn_res was 0.07 and 0.08 below `standard` of the same seed, gate-channel equal
to it within 0.01. For more than that take more steps and seeds, or gpt2_124m (not measured here).
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations


def get_config(size: str = "tiny") -> ConfigDict:
  c = ablations.get_config(size)
  c.workdir = f"runs/residuals_{size}"
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  yield from ablations.each_combinator()
  yield from ablations.gates(ablations.GRANULARITIES[1:])
  num_layers, default = config.model.num_layers, config.model.residual.block_attn_res
  for size in range(1, num_layers + 1):
    if num_layers % size == 0 and size != default.layers_per_block:
      overrides = ablations.system("block_attn_res", layers_per_block=size)
      yield f"block_attn_res-layers{size}", overrides
