"""Does the order of residual systems change between dense decoders and mixtures of experts?

The argument is `dense` (default) or `moe`, each a sweep of its own: the same seven systems in six
layers of 96. A token goes through as many FLOPs in both, but for the router's 0.6 %: the MLP of 256
is one, or 2 of 8 experts of 128 each, so that the layers of `moe` have 3.2 times the parameters.

  resjax sweep --config=ablations/moe_order
  resjax sweep --config=ablations/moe_order:moe

A stopped command goes on where it was, run by run; --only=ARM takes a piece of a sweep. Each system
has a rate of its own in both, from the same grid for all, as the best one may move.

Planned before the runs, at a margin of 0.25 %, with what `order` of docs/findings/depth.py finds
for two shapes: the order changes if two systems stand in one order in dense decoders and in the
other in mixtures, both for sure (Holm over all pairs); it does not if no two means are reversed, or
only such as differ by less than the margin for sure. A sweep ends when all arms have all five
seeds; nothing is left out but what diverged.

Hardware: 2 CPU cores, 1 GB of memory. Time: about 2 hours of CPU time in all, with 100
steps for each rate of tuning, estimated from steps of `standard` (0.12 s, 0.15 in `moe`) and `mhc`
(0.18) on a shared machine, and 20 s besides for each run.
Expect: nobody has run this. 256,000 tokens a run say how systems begin to train, and nothing about
where they end; experts have seen an eighth to a quarter of them.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations

SYSTEMS = (
  "standard", "block_attn_res", "attn_res", "hyper_connections", "mhc", "independent_hc",
  "gated_residual",
)  # fmt: skip
PLAN = {
  "baseline": "standard",
  "contrasts": tuple((name, "standard") for name in SYSTEMS[1:]),
  "margin": 0.0025,
  "seeds": (1, 2, 3, 4, 5),
  "stopping": "256,000 tokens of all arms with all five seeds",
  "tuning": {
    "settings": {"optim.learning_rate": (0.5, 1.0, 2.0)},
    "steps": 100,
    "seed": 1000,
    "overrides": {"optim.warmup_steps": 10},
    "most_moves": 6,
  },
}


def get_config(kind: str = "dense") -> ConfigDict:
  c = ablations.get_config("tiny")
  c.workdir = "runs/moe_order"
  c.model.update(num_layers=6, d_model=96, mlp_dim=256)
  c.model.residual.block_attn_res = {"layers_per_block": 2}
  ablations.set_kind(c, kind)
  c.data.seq_len = 128
  c.data.tokenizer.update(vocab_size=1024, train_bytes=4_000_000)
  c.optim.update(learning_rate=4e-3, warmup_steps=25)
  c.train.update(steps=250, batch_size=8, eval_rows=256)
  c.checkpoint.update(every=125, keep_last=1)
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  for name in SYSTEMS:
    yield name, {"model.residual.name": name}
