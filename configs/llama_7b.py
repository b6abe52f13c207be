"""A Llama-like decoder of 6.7B parameters with Block Attention Residuals, on 134B tokens of text.

Argument: the residual combinator, `block_attn_res` by default.

  python -m launch.train --config=configs/llama_7b.py --config.data.corpora.web.source=FOLDER
  python -m launch.aot --config=configs/llama_7b.py --topology=v5p-512

"""

from ml_collections import ConfigDict

from configs import llama_1p3b


def get_config(residual: str = "block_attn_res") -> ConfigDict:
  c = llama_1p3b.get_config(residual)
  c.workdir = "runs/llama_7b"
  c.model.update(num_layers=32, d_model=4096, num_heads=32, num_kv_heads=32, mlp_dim=11008)
  c.model.residual.block_attn_res.layers_per_block = 4
  c.data.seq_len = 4096
  c.optim.update(warmup_steps=2000)
  c.train.update(steps=32_000, batch_size=1024, microbatches=2)
  c.mesh.update(data=-1, fsdp=64)
  return c
