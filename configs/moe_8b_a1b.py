"""A mixture of 64 experts with 7.7B parameters, 1.3B of them active, on 67B tokens of text.

Its argument and FOLDER are as in configs/llama_1p3b.py, with `SLICES` of its own, and so are the
combinator by default, the data and the optimizer; docs/moe.md.

  resjax train --config=moe_8b_a1b:v5p-64 --config.data.corpora.web.source=FOLDER
  resjax aot --config=moe_8b_a1b:standard,v6e-64 --topology=v6e-64

Hardware: 32 chips of v5p (v5p-64) or 64 of v6e (v6e-64); a device holds a 32nd or a 64th of
parameters and moments. docs/moe.md has what `resjax aot` says of them.
Time: 8.6 GFLOP per token of training times 67B tokens is 5.8e20 FLOP; at an assumed 40% MFU that is
27 hours on v5p-64 (32 × 459 TFLOP/s) and 7 on v6e-64 (64 × 918). This is estimated from FLOPs and
data-sheet peaks, not measured; mixtures reach less than dense decoders do.
Expect: nobody has run this. Compare combinators by bits per byte, because the tokenizer is learned
from the corpus.

The sizes follow public mixtures such as OLMoE (arXiv 2409.02060): 64 experts of 1024, 8 for a
token, 18 layers of 2048 (there 16), 16 heads of 128, rows of 4096 tokens, 2.1M tokens per step.
With `config.model.moe.num_experts=0` it is a dense decoder of as many active parameters.
"""

from ml_collections import ConfigDict

from configs import llama_1p3b

# As in configs/llama_1p3b.py: what `resjax aot --search` (JAX 0.10.2, libtpu 0.0.42) chose for
# `block_attn_res`. Experts are split over `fsdp` as all matrices are, and gathered for a layer:
# over `expert` devices would hold the worst case of a batch (docs/moe.md).
SLICES = {
  "v5p-64": {"fsdp": 32, "remat": "none", "microbatches": 4},  # 61.42 of 95.74 GiB
  "v6e-64": {"fsdp": 64, "remat": "none", "microbatches": 8},  # 17.78 of 31.25 GiB; 2 rows: 31.29
}


def get_config(argument: str = "block_attn_res") -> ConfigDict:
  residual, settings = llama_1p3b.parse(argument, SLICES)
  c = llama_1p3b.get_config(residual)
  c.workdir = "runs/moe_8b_a1b"
  c.model.update(num_layers=18, mlp_dim=8192)
  c.model.moe.update(num_experts=64, num_experts_per_tok=8, expert_dim=1024)
  c.data.seq_len = 4096
  c.optim.warmup_steps = 2000  # 4.2B tokens of warm-up
  c.train.update(steps=32_000, batch_size=512, microbatches=8)  # × 2,097,152 tokens = 67B
  c.mesh.update(data=-1, fsdp=32)  # data: all remaining devices, slices among them
  llama_1p3b.set_slice(c, settings)
  return c
