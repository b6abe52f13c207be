"""Every residual combinator on a task whose answers are known.

The argument is the task of configs/synthetic.py: mqar (default), s3, s5, parity, copy or hops.

  resjax sweep --config=ablations/synthetic:s3
  resjax sweep --config=ablations/synthetic:s3 --only=standard,attn_res

Hardware: 2 CPU cores. Time: 23 runs of 1 to 5 minutes.
Expect: the table has the loss on the answers; accuracy by difficulty stands in the metrics.jsonl of
each run, as validation/accuracy_position_03. Depth blocks have one layer.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations, synthetic


def get_config(task: str = "mqar") -> ConfigDict:
  c = synthetic.get_config(task)
  c.workdir = f"runs/synthetic_{task}_systems"
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  for name, overrides in ablations.each_combinator():
    if "layers_per_block" in config.model.residual[name]:
      overrides[f"model.residual.{name}.layers_per_block"] = 1
    yield name, overrides
