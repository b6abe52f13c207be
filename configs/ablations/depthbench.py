"""DepthBench's sweep of depth: nine of its ten designs in seven shapes of 400M parameters.

The argument is the number of layers: 16, 20, 24 (default), 28, 32, 42 or 70. Wide or deep, all
shapes have 405M parameters within 3 %, embedding and output included.

  resjax sweep --config=ablations/depthbench:24 --config.data.corpora.web.source=FOLDER
  resjax sweep --config=ablations/depthbench:70 --print_commands
  resjax aot --config=ablations/depthbench:70 --topology=v5p-32

FOLDER holds Parquet files with a column `text`: FineWeb-Edu in the original. Each printed command
is one run, which every launcher takes; the same sweep command prints the runs of tuning first. The
tokenizer of the original is fetched by its name, or set --config.data.tokenizer.folder.

Each design has its own rate, chosen among the original's 5e-4, 1e-3, 2e-3 and 5e-3, LNS among the
same times five, 1e-2 among them; the grid grows where the best is the first or the last one. Tuning
takes a fifth of the tokens and a seed of its own, where the original compares whole runs. Unlike
it, this sweep has seeds, and `wide_residual` as one more arm, which has streams and neither mixing
nor coefficients by token.

What cannot be expressed: MoDA is not in resjax. HC and mHC there multiply the initial values of
output projections by √4, and mHC starts from logits of ±8 where `home_stream` has ±3. The original
has 50,280 rows of the embedding, here 50,304, which more meshes divide.

Hardware: 16 chips of v5p (v5p-32) or 8 H100. Time: 2.3 (16 layers) to 2.8 GFLOP per token times
8.0B tokens are 1.8e19 to 2.2e19 FLOP a run, 1.7 to 2.1 hours at an assumed 40 % MFU (estimated from
FLOPs, not measured); 30 runs for each shape, and as many tokens as 8 more for tuning.
Expect: nobody has run this. The original reports one run per design, read off a figure by its
authors: at 24 layers 2.765 for pre-norm, 2.757 sandwich, 2.740 LNS, 2.796 DeepNorm, 2.767 KEEL,
2.719 block AttnRes, 2.726 AttnRes, 2.702 HC, 2.710 mHC; at 70 layers 2.702 for AttnRes and 2.682
for HC. docs/systems.md has the table.

Source: DepthBench, arXiv 2609.32534, and the configs of keyu-wang-2002/DepthBench.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import base

# The width and the width of the MLP, by layers.
SHAPES = {
  16: (1216, 3248),
  20: (1120, 2992),
  24: (1024, 2736),
  28: (960, 2560),
  32: (896, 2400),
  42: (800, 2144),
  70: (640, 1712),
}
STEPS = 7_600
LNS = 5  # its rates are so many times those of other designs
PLAN = {
  "baseline": "standard",
  "seeds": (1, 2, 3),
  "stopping": "8.0B tokens of all arms with all three seeds; a stop leaves whole seeds",
  "tuning": {
    "settings": {"optim.learning_rate": (0.25, 0.5, 1.0, 2.5)},
    "steps": STEPS // 5,
    "seed": 1000,
    "overrides": {"optim.warmup_steps": STEPS // 50},
  },
}


def get_config(layers: str = "24") -> ConfigDict:
  c = base.get_config()
  c.workdir = f"runs/depthbench_{layers}"
  set_shape(c, layers, SHAPES, heads=16)
  c.model.tied_embeddings = False
  c.data.seq_len = 2048
  c.data.corpora = {"web": base.corpus() | {"source": "data/text/web", "format": "parquet"}}
  c.data.tokenizer.update(name="pretrained", folder="allenai/gpt-neox-olmo-dolma-v1_5")
  c.data.tokenizer.update(vocab_size=50_304, documents="eos")
  c.data.update(validation_fraction=0.002, test_fraction=0.002)
  c.optim.update(learning_rate=2e-3, warmup_steps=STEPS // 10)
  c.train.update(steps=STEPS, batch_size=512, microbatches=2, loss_chunk=4096)
  c.train.update(eval_every=1000, eval_rows=4096, sample_tokens=0)
  c.checkpoint.every = 500
  c.mesh.fsdp = 8  # data: all remaining devices
  return c


def set_shape(c: ConfigDict, layers: str, shapes: dict[int, tuple[int, int]], heads: int) -> None:
  """Gives a config the shape with so many layers, and AttnRes eight depth blocks at most."""
  if layers not in map(str, shapes):
    raise ValueError(f"{layers!r} layers: one of {', '.join(map(str, shapes))} is allowed")
  m, (d_model, mlp_dim) = c.model, shapes[int(layers)]
  m.update(num_layers=int(layers), d_model=d_model, mlp_dim=mlp_dim)
  m.update(num_heads=heads, num_kv_heads=heads)
  m.residual.block_attn_res = {"layers_per_block": -(-m.num_layers // 8)}
  m.residual.mhc = {"init": "home_stream"}


def designs() -> Iterator[tuple[str, dict]]:
  """Yields the designs of DepthBench that resjax has, and `wide_residual`."""
  yield "standard", {"model.residual.name": "standard"}
  yield "sandwich", {"model.residual.name": "standard", "model.post_norm": True}
  yield "lns", {"model.residual.name": "lns"}
  yield "deepnorm", {"model.residual.name": "deepnorm", "model.scaled_output_init": False}
  for name in ("keel", "block_attn_res", "attn_res", "hyper_connections", "mhc", "wide_residual"):
    yield name, {"model.residual.name": name}


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  for arm, overrides in designs():
    if arm == "lns":
      overrides["optim.learning_rate"] = LNS * config.optim.learning_rate
    yield arm, overrides
