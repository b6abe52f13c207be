"""A Llama-like decoder of 1.35B parameters with Block Attention Residuals, on 27B tokens of text.

The argument is the residual combinator, `block_attn_res` by default, or a slice of `SLICES`, whose
recomputation and microbatches are then set, or both with a comma between.

  resjax train --config=llama_1p3b --config.data.corpora.web.source=FOLDER
  resjax train --config=llama_1p3b:v5e-256 --config.data.corpora.web.source=...
  resjax aot --config=llama_1p3b:standard,v5e-256 --topology=v5e-256

FOLDER holds Parquet files with a column `text`; see configs/gpt2_124m.py for other files.

Hardware: 256 chips of v5e, v5p or v6e (v5e-256, v5p-512, v6e-256), or two slices of v5e-256 as it
is; a device holds a 16th of parameters and moments, 0.9 GiB. docs/measurements.md has what
`resjax aot` says of each slice. On fewer chips set --config.train.microbatches.
Without a slice in the argument all of a layer is recomputed, which fits all of these.
Time: 8.3 GFLOP per token of training times 27B tokens is 2.2e20 FLOP; at an assumed 40% MFU that is
3.1 hours on v5e-256 (256 × 197 TFLOP/s), 1.5 on two such slices, 1.3 on v5p-512 (256 × 459) and 0.7
on v6e-256 (256 × 918). This is estimated from FLOPs and data-sheet peaks, not measured.
Expect: nobody has run this. Compare combinators by bits per byte, because the tokenizer is learned
from the corpus.

The sizes follow public decoders of 1.3B: 24 layers of 2048, 16 heads of 128, MLP of 8/3 D,
rows of 2048 tokens, 1.0M tokens per step; the vocabulary of 32,768 divides over any `tensor`.
"""

from collections.abc import Mapping

from ml_collections import ConfigDict

from configs import base

# What `resjax aot --search` (JAX 0.10.2, libtpu 0.0.42) chose for `block_attn_res`: the least
# recomputation with which a row fits, and then the most rows at a time; and what that needs of a
# device's HBM. The search leaves the mesh as it is.
SLICES = {
  "v5e-256": {"fsdp": 16, "remat": "none", "microbatches": 2},  # 9.80 of 15.75 GiB; 2 rows: 17.08
  "v5p-512": {"fsdp": 16, "remat": "none", "microbatches": 1},  # 12.79 of 95.74 GiB
  "v6e-256": {"fsdp": 16, "remat": "none", "microbatches": 1},  # 17.26 of 31.25 GiB
}


def parse(argument: str, slices: Mapping[str, dict]) -> tuple[str, dict]:
  """Returns the combinator and the settings of the slice that an argument names."""
  words = argument.split(",")
  residuals = [word for word in words if word not in slices]
  wrong = [word for word in residuals if not (word.isidentifier() or ":" in word)]
  if wrong or len(residuals) > 1 or len(words) - len(residuals) > 1:
    raise ValueError(
      f"argument {argument!r} is not a combinator, a slice, or both with a comma between; "
      f"slices: {', '.join(slices)}"
    )
  chosen = [slices[word] for word in words if word in slices]
  return (residuals or ["block_attn_res"])[0], (chosen or [{}])[0]


def set_slice(c: ConfigDict, settings: Mapping) -> None:
  """Applies the settings of a slice of `SLICES`, if there are any."""
  if settings:
    c.mesh.fsdp, c.model.remat = settings["fsdp"], settings["remat"]
    c.train.microbatches = settings["microbatches"]


def get_config(argument: str = "block_attn_res") -> ConfigDict:
  residual, settings = parse(argument, SLICES)
  c = base.get_config()
  c.workdir = "runs/llama_1p3b"
  c.model.update(num_layers=24, d_model=2048, num_heads=16, num_kv_heads=16, mlp_dim=5504)
  c.model.tied_embeddings = False
  c.model.residual.name = residual
  c.model.residual.block_attn_res = {"layers_per_block": 3}  # 8 depth blocks
  c.data.seq_len = 2048
  c.data.corpora = {"web": base.corpus() | {"source": "data/text/web", "format": "parquet"}}
  c.data.tokenizer.update(vocab_size=32768, train_bytes=200_000_000)
  c.data.update(validation_fraction=0.002, test_fraction=0.002)
  c.optim.update(learning_rate=3e-4, warmup_steps=1000)  # 1.0B tokens of warm-up
  c.train.update(
    steps=25_600,  # × 1,048,576 tokens = 27B
    batch_size=512,
    loss_chunk=2048,
    eval_every=1000,
    eval_rows=4096,
  )
  c.checkpoint.every = 500
  c.mesh.update(data=-1, fsdp=16)  # data: all remaining devices, slices among them
  set_slice(c, settings)
  return c
