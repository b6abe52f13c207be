"""A decoder of 1.7M parameters with Block Attention Residuals, on the Python standard library.

  resjax train --config=tiny      (what `make train` runs)

Hardware: 2 CPU cores, 2 GB of memory. Time: about 4 minutes, data included.
Expect: validation falls from about 3.5 to below 2 bits per byte.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
  c = base.get_config()
  c.workdir = "runs/tiny"
  c.model.update(num_layers=6, d_model=128, num_heads=4, num_kv_heads=2, mlp_dim=384)
  c.model.remat = "none"  # this size needs little memory
  c.model.residual.update(name="block_attn_res", block_attn_res={"layers_per_block": 2})
  c.data.seq_len = 256
  c.data.tokenizer.update(vocab_size=4096, train_bytes=8_000_000)
  c.optim.update(learning_rate=4e-3, warmup_steps=20)
  c.train.update(steps=300, batch_size=8, eval_every=100, eval_rows=64, alignment_every=100)
  c.checkpoint.every = 50
  return c
