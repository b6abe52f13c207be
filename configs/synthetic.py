"""Small decoders on tasks whose answers are known: recall, groups, copying, hops.

The argument is the task: mqar (default), s3, s5, parity, copy or hops.

  resjax train --config=synthetic:s3
  resjax train --config=synthetic:mqar --config.model.residual.name=attn_res

Hardware: 2 CPU cores. Time: 1 to 3 minutes, data included.
Expect: mqar 1.00 after 200 steps, s3 0.56 after 1,100 (docs/synthetic.md); the others were not
measured. `configs/ablations/synthetic.py` has every combinator.
"""

from ml_collections import ConfigDict

from configs import base

# The settings of the source; tokens of a row and vocabulary, each with the end of text; layers,
# learning rate and steps.
TASKS = {
  "mqar": ("pairs=8&length=64", 65, 256, 2, 3e-3, 300),
  "s3": ("length=16", 17, 7, 4, 2e-3, 1100),
  "s5": ("length=16", 17, 121, 4, 2e-3, 1100),
  "parity": ("length=16", 17, 3, 4, 2e-3, 1100),
  "copy": ("length=32&symbols=32", 33, 34, 2, 3e-3, 600),
  "hops": ("elements=8&hops=2&length=48", 49, 11, 4, 2e-3, 2000),
}


def get_config(task: str = "mqar") -> ConfigDict:
  if task not in TASKS:
    raise ValueError(f"{task!r} is no task; allowed: {', '.join(TASKS)}")
  settings, seq_len, vocab_size, num_layers, learning_rate, steps = TASKS[task]
  c = base.get_config()
  c.workdir = f"runs/synthetic_{task}"
  c.model.update(num_layers=num_layers, d_model=64, num_heads=4, num_kv_heads=4, mlp_dim=128)
  c.model.init_std = 0.125  # 1 / √D: with 0.02 so small a model hardly moves in its first 100 steps
  if task == "mqar":  # Attention alone was not seen to bind keys to values, see docs/synthetic.md.
    c.model.short_swa.update(window=2, zero_init=False)
  c.model.remat = "none"  # this size needs little memory
  c.data.seq_len = seq_len
  c.data.corpora = {task: base.corpus() | {"source": f"synthetic:{task}?{settings}"}}
  c.data.tokenizer.update(name="synthetic", vocab_size=vocab_size)
  c.optim.update(learning_rate=learning_rate, warmup_steps=20)
  c.optim.update(schedule="constant", weight_decay=0.0)
  c.train.update(steps=steps, batch_size=64, eval_every=100, eval_rows=512, sample_tokens=0)
  c.checkpoint.every = 500
  return c
