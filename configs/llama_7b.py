"""A Llama-like decoder of 6.7B parameters with Block Attention Residuals, on 134B tokens of text.

Its argument and FOLDER are as in configs/llama_1p3b.py, with `SLICES` of its own, and so are the
combinator by default, the data and the optimizer.

  resjax train --config=llama_7b --config.data.corpora.web.source=FOLDER
  resjax train --config=llama_7b:v5p-512 --config.data.corpora.web.source=...
  resjax aot --config=llama_7b:v5p-512 --topology=v5p-512

Hardware: the slices of configs/llama_1p3b.py; a device holds a 64th of parameters and moments,
1.2 GiB (in the preset of v5p-512 a 32nd). docs/measurements.md has what `resjax aot` says of each
slice.
Time: 42.9 GFLOP per token of training times 134B tokens is 5.8e21 FLOP; at an assumed 40% MFU that
is 3.3 days on v5e-256 (256 × 197 TFLOP/s), 1.7 on two such slices, 1.4 on v5p-512 (256 × 459) and
0.7 on v6e-256 (256 × 918). This is estimated from FLOPs and data-sheet peaks, not measured.
Expect: nobody has run this. Compare combinators by bits per byte, because the tokenizer is learned
from the corpus.

The sizes follow public decoders of 7B: 32 layers of 4096, 32 heads of 128, MLP of 11008, rows
of 4096 tokens, 4.2M tokens per step; the vocabulary of 32,768 divides over any `tensor`.
"""

from ml_collections import ConfigDict

from configs import llama_1p3b

# As in configs/llama_1p3b.py: what `resjax aot --search` chose for `block_attn_res`. On v5p the
# gradients of the MLP (11008 wide) are scattered with fsdp=32; with 64 the compiler sums them
# whole, 32 GiB in a step that nothing overlaps. v5e has no room for fsdp=32.
SLICES = {
  "v5e-256": {"fsdp": 64, "remat": "dots", "microbatches": 4},  # 15.01 of 15.75 GiB; none: 43.90
  "v5p-512": {"fsdp": 32, "remat": "none", "microbatches": 2},  # 63.01 of 95.74 GiB; 4 rows: 119.74
  "v6e-256": {"fsdp": 64, "remat": "dots", "microbatches": 2},  # 28.52 of 31.25 GiB; none: 43.82
}


def get_config(argument: str = "block_attn_res") -> ConfigDict:
  residual, settings = llama_1p3b.parse(argument, SLICES)
  c = llama_1p3b.get_config(residual)
  c.workdir = "runs/llama_7b"
  c.model.update(num_layers=32, d_model=4096, num_heads=32, num_kv_heads=32, mlp_dim=11008)
  c.model.residual.block_attn_res = {"layers_per_block": 4}  # 8 depth blocks
  c.data.seq_len = 4096
  c.optim.update(warmup_steps=2000)  # 8.4B tokens of warm-up
  c.train.update(steps=32_000, batch_size=1024, microbatches=2)  # × 4,194,304 tokens = 134B
  c.mesh.update(data=-1, fsdp=64)  # data: all remaining devices, slices among them
  llama_1p3b.set_slice(c, settings)
  return c
