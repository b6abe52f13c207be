"""Track 3 of modded-nanogpt, of 3,250 steps with Muon: the residual system alone may change.

The argument is the residual system, `standard` by default.

  resjax train --config=track3 --config.data.corpora.web.source=FOLDER
  resjax train --config=track3:attn_res --config.seed=1 \
    --config.data.corpora.web.source=FOLDER --config.workdir=runs/track3_attn_res

FOLDER holds Parquet files with a column `text`: FineWeb in the original, whose first 2B tokens are
enough. The score is the number of steps to a validation loss of 3.28 nats per token: run with
--config.train.steps of what is to be shown, since the rate falls to zero at the last one. A number
counts if (3.28 - mean) · √n >= 0.004 over n seeds, and 100 steps are worth about 0.0045.

Hardware: 8 H100, or one with --config.train.microbatches=8. Time: 0.80 GFLOP per token times 1.7B
tokens is 1.4e18 FLOP, 7 minutes on 8 H100 at an assumed 40 % MFU (estimated, not measured).
Expect: nobody has run this. The original's baseline, Muon with an auxiliary AdamW, reaches 3.28
in 3,250 steps. Find its own number of `standard` here first, and compare with that one.

The architecture is the original's in: 12 layers of 768 with 6 heads of 128, MLP of 4 D, rows of
1,024 tokens, 524,288 tokens a step, 50,304 rows of the vocabulary, output not tied, biases in all
layers, RMS norms of queries and keys, scores scaled by 0.12, rotation of the first half of
frequencies (base 1024 on 32 points with its end, which is base 1024^(32/31) without it), a cap of
the logits at 15.

What cannot be expressed: relu² in the MLP (here gelu), the norm behind the embedding (here it is
multiplied by √D), the bias of the output, the cap x / √(1 + (x/15)²) (here 15 tanh(x/15)), output
projections that start at zero (here small), initial values uniform in their size for all fan-ins.
Rates: there 0.025 for Muon, 0.7 for the embedding, 0.004 for the output and 0.015 for vectors; here
one rate, which is the original's for the square matrices and the first one of the MLP, whose
update resjax scales by 0.2 √max(d_in, d_out), twice the original's for the second one; and near its
0.004 for all that AdamW moves. Adam's decay is Muon's here. So 3,250 steps are no check of resjax
within noise, but where `standard` should come out within some hundreds; differences between systems
are what the config is for.

Source: KellerJordan/modded-nanogpt, records/track_3_optimization (result 36).
"""

from ml_collections import ConfigDict

from configs import base

RATE, DECAY = 0.025, 0.05  # the original's for Muon
SCALE = 0.2 * 768**0.5  # what resjax multiplies Muon's update of a square matrix by


def get_config(residual: str = "standard") -> ConfigDict:
  c = base.get_config()
  c.workdir = f"runs/track3_{residual}"
  c.model.update(num_layers=12, d_model=768, num_heads=6, num_kv_heads=6, mlp_dim=3072)
  c.model.update(mlp="gelu", bias="all", qk_norm=True, query_pre_attn_scalar=0.12**-2)
  c.model.update(rope_theta=1024 ** (32 / 31), rope_fraction=0.5, logit_softcap=15.0)
  c.model.update(tied_embeddings=False, embed_scale=True, init_std=(0.33 / 768) ** 0.5)
  c.model.remat = "dots"
  c.model.residual.name = residual
  c.data.corpora = {"web": base.corpus() | {"source": "data/text/web", "format": "parquet"}}
  c.data.tokenizer.update(name="pretrained", folder="openai-community/gpt2")
  c.data.tokenizer.update(vocab_size=50_304, documents="bos")
  c.data.update(validation_fraction=0.01, test_fraction=0.005)
  c.optim.update(name="muon", learning_rate=RATE / SCALE, weight_decay=DECAY * SCALE)
  c.optim.update(schedule="wsd", warmup_steps=0, decay_fraction=0.7, final_fraction=0.0)
  c.optim.update(b1=0.8, eps=1e-10, clip_norm=0.0)
  c.train.update(steps=3_250, batch_size=512, z_loss=0.0, loss_chunk=4096)
  c.train.update(eval_every=125, eval_rows=10_240, sample_tokens=0)
  c.checkpoint.every = 500
  return c
