"""Seven residual systems against `standard`, five seeds each, with tuned learning rates.

  resjax sweep --config=ablations/h100_45min --spread=0.002 \
    --config.data.corpora.web.source=FOLDER
  resjax sweep --config=ablations/h100_45min --print_commands

FOLDER holds Parquet files with a column `text`; without it the text is Python's standard library,
which is far too small for 50M tokens: it is read more than once. Every arm first tries five
learning rates on 10M tokens with a seed of its own; then the plan, written before, is carried out.

Hardware: one H100. Time at an assumed 1M tokens/s (15 % MFU, which this size needs the seeds of an
arm in one program for; not measured): 33 minutes of training, 7 of evaluation, 8 of tuning, and the
compilation of each run. With --seeds=0,1,2 it is 24 minutes and 8.
Expect: 6 layers of width 384, 10.6M + 12.6M parameters, 146 MFLOP per token. Differences
of 1.7 standard deviations of a paired difference show, 2.9 in the strictest step of Holm, early in
training: 5 tokens per parameter of the layers.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations, base

TOKENS, TUNING_TOKENS = 50_000_000, 10_000_000
PLAN = {
  "baseline": "standard",
  "metric": "bits_per_byte",
  "split": "validation",
  "margin": 0.0025,
  "seeds": (0, 1, 2, 3, 4),
  "stopping": "50M tokens of all arms with all five seeds; a stop leaves whole seeds",
  "tuning": {
    "settings": {"optim.learning_rate": (0.5, 0.71, 1.0, 1.41, 2.0)},
    "steps": TUNING_TOKENS // (64 * 512),
    "seed": 1000,
    "overrides": {"train.eval_rows": 4096},
  },
}


def get_config() -> ConfigDict:
  c = ablations.get_config("tiny")
  c.workdir = "runs/h100_45min"
  c.model.update(num_layers=6, d_model=384, num_heads=6, num_kv_heads=6, mlp_dim=1024)
  c.model.residual.block_attn_res = {"layers_per_block": 2}
  c.data.seq_len = 512
  c.data.corpora = {"web": base.corpus()}
  c.data.tokenizer.update(vocab_size=32_768, train_bytes=100_000_000)
  c.data.validation_fraction = 0.05
  c.optim.update(learning_rate=2e-3, warmup_steps=30)
  c.train.update(steps=TOKENS // (64 * 512), batch_size=64, eval_every=763)  # halfway, too
  c.train.eval_rows = 19_532  # 10M tokens, so that the sample adds little to the spread of seeds
  c.checkpoint.update(every=500, keep_last=1)
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  yield "standard", {"model.residual.name": "standard"}
  yield "gate", ablations.system("gate", granularity="layer")
  yield "cut-last", ablations.cut(-1, 0.5)
  for name in ("block_attn_res", "attn_res", "denseformer", "x0_residual", "hyper_connections"):
    yield name, {"model.residual.name": name}
