"""Records of the runs of a ladder whose losses follow a known law."""

import json

from configs import ladder
from resjax.base.records.metrics_log import METRICS_FILE
from resjax.train import experiment
from resjax.train.runs import workdir

FLOOR, SCALE, EXPONENT = 1.2, 150.0, 0.2
SAVING = {"standard": 1.0, "gate": 1.25, "block_attn_res": 0.9}


def runs(size="toy"):
  """Yields the name and the built run of each run of a ladder."""
  config = ladder.get_config(size)
  for name, overrides in ladder.sweep(config):
    own = config.copy_and_resolve_references()
    own.update_from_flattened_dict(overrides)
    own.mesh.update(data=-1)
    yield name, experiment.build(own)


def write(folder, data="aa", speeds=None, seeds=()):
  """Writes the folder of every run, with losses of a law in FLOPs, and returns the folder of all.

  Args:
    folder: the folder of the ladder.
    data: the fingerprint of the data of all runs.
    speeds: by arm, tokens per second; others have 10,000.
    seeds: one or two; without any a run has no folders of seeds. Two differ by as much in both
      directions from the law.
  """
  for name, run in runs():
    arm = name.partition("-")[2]
    tokens = run.train.steps * run.train.batch_size * run.data.seq_len
    # Their own FLOPs per token would differ from arm to arm.
    price = 6.0 * run.decoder.num_layers * run.decoder.d_model**2
    loss = FLOOR + SCALE * (SAVING[arm] * tokens * price) ** -EXPONENT
    places = [f"seed_{seed}" for seed in seeds] or [""]
    for offset, place in zip((1e-3, -1e-3), places, strict=False):
      own = folder / name / place
      own.mkdir(parents=True)
      record = {
        "config": run.resolved, "identity": {}, "data_fingerprint": data,
        "costs": {"parameters": 1, "training_flops_per_token": price},
      }  # fmt: skip
      (own / workdir.RECORD).write_text(json.dumps(record))
      speed = (speeds or {}).get(arm, 1e4)
      records = [
        {"step": 0, "validation/loss": 5.5},
        {"step": run.train.steps, "train/loss": 1.0, "time/tokens_per_second": speed},
        {"step": run.train.steps, "validation/loss": loss + offset * bool(seeds)},
      ]
      (own / METRICS_FILE).write_text("".join(json.dumps(one) + "\n" for one in records))
  return folder
