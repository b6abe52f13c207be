"""Every system with its defaults at tiny size: loss, parameters, tokens/s, depth state.

  resjax sweep --config=ablations/compare      (what `make compare` runs)
  make compare ARGS=--only=standard,attn_res
  resjax sweep --config=ablations/compare:moe

The argument is `dense` (default), or `moe` for a mixture of 8 experts in every layer, whose 2 for a
token are together as wide as the MLP; its steps take about a quarter longer.

Hardware: 2 CPU cores, 2 GB of memory. Time: about a minute per name (100 s of CPU time for
`standard`, data included).
Expect: `standard` falls from 3.48 to 2.21 bits per byte in its 300 steps of 1,024 tokens, the
others to 2.06 (`depth_attention`) to 2.71 (`deepnorm`); the table is in docs/measurements.md.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations


def get_config(kind: str = "dense") -> ConfigDict:
  c = ablations.get_config("tiny")
  c.workdir = "runs/compare"
  c.model.update(d_model=64, mlp_dim=192)
  c.data.seq_len = 128
  c.train.steps = 300
  c.checkpoint.update(every=100, keep_last=1)
  ablations.set_kind(c, kind)
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  yield from ablations.systems()
