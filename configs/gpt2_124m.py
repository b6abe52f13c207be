"""GPT-2 124M on 10B tokens of web text: the setting of Residual Connections and the Causal Shift.

The argument is the residual combinator, `standard` by default.

  resjax train --config=gpt2_124m --config.data.corpora.web.source=FOLDER
  resjax train --config=gpt2_124m:attn_res \
    --config.data.corpora.web.source=FOLDER --config.workdir=runs/gpt2_124m_attn_res

FOLDER holds Parquet files with a column `text`, such as the sample-10BT of FineWeb-Edu; for other
files set --config.data.corpora.web.format and .field too. Text that holds fewer than 10B tokens is
read more than once.

Hardware: one GPU of 80 GB, or a TPU v5e-8 (8 rows of 1024 tokens per chip and microbatch); about
60 GB of disk for text and rows.
Time: 0.80 GFLOP per token of training times 10B tokens is 8.0e18 FLOP; at an assumed 40% MFU that
is 5.6 hours on an H100 (989 TFLOP/s) and 3.5 hours on a v5e-8 (8 × 197 TFLOP/s). This is
estimated from FLOPs and data-sheet peaks, not measured; building the data comes on top.
Expect: public runs of this size on such text reach about 3.0 to 3.3 nats per token with GPT-2's
tokenizer. Nobody has run this. The tokenizer is learned from the corpus, so compare bits per byte.

Source: arXiv 2602.14760, and public GPT-2 124M recipes for all that the paper leaves open.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(residual: str = "standard") -> ConfigDict:
  c = base.get_config("gpt2")  # 12 layers, 12 heads, D 768, rows of 1024 tokens, tied embeddings
  c.workdir = "runs/gpt2_124m"
  c.model.residual.name = residual
  c.data.corpora = {"web": base.corpus() | {"source": "data/text/web", "format": "parquet"}}
  c.data.tokenizer.update(vocab_size=50257, train_bytes=200_000_000)
  c.data.update(validation_fraction=0.005, test_fraction=0.005)
  c.model.remat = "dots"  # on one GPU 14 GB instead of 6, and no product of matrices twice
  c.optim.update(learning_rate=6e-4, warmup_steps=700)  # 0.37B tokens of warm-up
  c.train.update(
    steps=19_073,  # × 524,288 tokens = 10B
    batch_size=512,
    microbatches=8,
    z_loss=0.0,
    loss_chunk=4096,
    eval_every=500,
    eval_rows=2048,
  )
  c.checkpoint.every = 500
  return c
