"""Size S of hyper-connection-factory: 12 layers of 512, seven of its eight wirings, one rate.

  resjax sweep --config=ablations/factory_s --config.data.corpora.web.source=FOLDER
  resjax sweep --config=ablations/factory_s --print_commands

FOLDER holds Parquet files with a column `text`, those of FineWeb-Edu sample-10BT in the original.
38.5M parameters besides the tied embedding, 0.79B tokens in 3,000 steps, WSD with a fifth of the
steps for the decay to a tenth, and 2e-3 for all arms, as there: tuning is left out on purpose.

Hardware: one GPU of 80 GB. Time: 0.42 GFLOP per token of `standard` times 0.79B tokens is 3.3e17
FLOP, a quarter of an hour on an H100 at an assumed 40 % MFU (estimated, not measured); 21 runs.
Expect: nobody has run this here. What it should give again is results/scaling_gpu_s of the
original, one seed each, in nats per token: prenorm 3.4439, and less than that by

  muddformer 0.1115 · hc-dynamic-n4 0.0699 · mhc-n4 0.0621 · mhar-h4 0.0426 · attnres-full 0.0407 ·
  hc-static-n4 0.0355 (frac-dynamic-m2 0.0245)

Wirings have as many parameters as there: 1,188,493 for mhc-n4, 25,600 for mhar-h4 and attnres-full,
576 for hc-static-n4. Where HC's norms have no gain and bias of their own hc-dynamic-n4 has 24,576
fewer, 74,352; muddformer has 459,137, of which 32,768 do nothing, and 414,100 there.

What cannot be expressed: Frac-Connections are no system of resjax. The original decays no parameter
of a connection, here W of `hyper_connections`, φ of `mhc` and the MLPs of `muddformer` are decayed,
as their authors have it. Its φ of mHC is normal (0.02) in all parts, here it has a variance of
1 / (R D), which is 0.022², and is zero for what is written; a is 0.01 and the bias 0 in both. Its
validation is the first 2M tokens of the corpus, here documents that their hash chooses.

Source: wdlctc/hyper-connection-factory, configs/scaling_gpu/s.yaml and configs/variants_gpu.yaml.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import base
from configs.ablations import system

STEPS = 3_000
PLAN = {
  "baseline": "standard",
  "metric": "loss",
  "margin": 0.0015,
  "spread": 0.003,
  "seeds": (0, 1, 2),
  "stopping": "0.79B tokens of all arms with all three seeds; a stop leaves whole seeds",
}


def get_config() -> ConfigDict:
  c = base.get_config()
  c.workdir = "runs/factory_s"
  c.model.update(num_layers=12, d_model=512, num_heads=8, num_kv_heads=8, mlp_dim=1408)
  c.model.remat = "dots"
  c.data.corpora = {"web": base.corpus() | {"source": "data/text/web", "format": "parquet"}}
  c.data.tokenizer.update(name="pretrained", folder="openai-community/gpt2")
  c.data.tokenizer.update(vocab_size=50_304, documents="eos")
  c.data.update(validation_fraction=0.005, test_fraction=0.005)
  c.optim.update(schedule="wsd", learning_rate=2e-3, warmup_steps=STEPS // 10)
  c.train.update(steps=STEPS, batch_size=256, microbatches=4, z_loss=0.0, loss_chunk=4096)
  c.train.update(eval_every=250, eval_rows=1600, sample_tokens=0)
  c.checkpoint.every = 500
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  yield "standard", system("standard")
  yield "hc-static-n4", system("hyper_connections", dynamic=False)
  yield "hc-dynamic-n4", system("hyper_connections", dynamic=True)
  yield "mhc-n4", system("mhc", init="uniform", gate_eps=1e-6, head="learned")
  yield "muddformer", system("muddformer")
  yield "mhar-h4", system("attn_res", num_heads=4)
  yield "attnres-full", system("attn_res")
