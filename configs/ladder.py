"""A scaling ladder: four sizes, with every arm, for how much compute an arm saves.

The argument is the size, `full` (default) or `toy`.

  resjax sweep --config=ladder:toy
  resjax ladder --workdir=runs/ladder_toy
  resjax sweep --config=ladder --config.data.corpora.web.source=FOLDER \
    --print_commands

Runs are named RUNG-ARM, such as l4d256-gate; --only=NAMES chooses some of them, and ARMS below is
the list of arms. Every rung takes 20 tokens per parameter that is no embedding, counted for
`standard` (arXiv 2203.15556). The second rung's learning rates go to the other
widths by muP; tune them there for every arm. Its depth part is left out, because it is a residual
system itself.

Hardware: 2 CPU cores, 2 GB of memory (toy); one GPU of 80 GB for each run (full).
Time: toy 12 runs of 10 seconds to 9 minutes on a core that others used too; full, from FLOPs at an
assumed 40 % MFU on an H100, 0.2, 2, 7 and 60 minutes a run (not measured).
Expect: toy falls from 2.63 nats per byte on the first rung to 1.33 on the last (`standard`), and
says nothing about larger models. full was not run.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import base

ARMS = ("standard", "gate", "block_attn_res")  # names of combinators, the reference first
TOKENS_PER_PARAMETER = 20
# The sizes of the rungs; the config has the sizes of rung 3, at which learning rates are tuned.
RUNGS = (2, 3, 4, 6)
SIZES = {
  "full": {"num_layers": 6, "d_model": 384, "num_heads": 6},
  "toy": {"num_layers": 3, "d_model": 24, "num_heads": 3},
}
_TUNED = 3


def get_config(size: str = "full") -> ConfigDict:
  if size not in SIZES:
    raise ValueError(f"size {size!r} is not known; choose one of {sorted(SIZES)}")
  c = base.get_config()
  c.workdir = f"runs/ladder_{size}"
  c.model.update(SIZES[size])
  c.model.update(num_kv_heads=c.model.num_heads, mlp_dim=3 * c.model.d_model)
  c.model.mup.base_width = c.model.d_model
  c.optim.update(schedule="wsd", final_fraction=0.01)
  c.train.update(eval_every=0, sample_tokens=0)
  if size == "toy":
    c.model.remat = "none"
    c.data.seq_len = 128
    c.data.tokenizer.name = "byte"
    c.optim.learning_rate = 1e-2
    c.train.update(batch_size=8, eval_rows=1024)
  else:
    c.data.corpora = {"web": base.corpus() | {"source": "data/text/web", "format": "parquet"}}
    c.data.tokenizer.update(vocab_size=32768, train_bytes=200_000_000)
    c.optim.learning_rate = 2e-3
    c.train.update(batch_size=64, loss_chunk=4096, eval_rows=10_240)
  c.model.residual.block_attn_res = {}
  c.update_from_flattened_dict(_rung(c, _TUNED))
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  for size in RUNGS:
    rung = _rung(config, size)
    for arm in ARMS:
      name = f"l{rung['model.num_layers']}d{rung['model.d_model']}-{arm}"
      yield name, {**rung, "model.residual.name": arm}


def _rung(config: ConfigDict, size: int) -> dict:
  """Returns the settings of a rung, given the config of the one that is tuned."""
  sizes = ("num_layers", "d_model", "num_heads", "num_kv_heads", "mlp_dim")
  m = {name: config.model[name] * size // _TUNED for name in sizes}
  head = config.model.head_dim or config.model.d_model // config.model.num_heads
  attention = 2 * m["d_model"] * head * (m["num_heads"] + m["num_kv_heads"])
  layer = attention + 3 * m["d_model"] * m["mlp_dim"] + 2 * m["d_model"]  # two norms
  parameters = m["num_layers"] * layer + m["d_model"]
  tokens = config.train.batch_size * config.data.seq_len
  steps = -(-TOKENS_PER_PARAMETER * parameters // tokens)
  return {
    **{f"model.{name}": value for name, value in m.items()},
    "model.residual.block_attn_res.layers_per_block": -(-m["num_layers"] // 4),
    "train.steps": steps,
    "optim.warmup_steps": max(1, steps // 20),
  }
