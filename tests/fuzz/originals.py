"""Valid files that cases damage, made once, and what commands give for them."""

import json
import shutil
from pathlib import Path

import numpy as np

from tests.fuzz.forks import ROOT
from tests.helpers import pretrained

STEPS = 4
_WORDS = ["depth", "width", "layer", "token", "source", "stream", "query", "gate", "norm"]

# A model of some thousand parameters; its names of folders are relative to the place of a case.
_SMALL = {
  "workdir": "run",
  "data.root": "data",
  "data.corpora.stdlib.source": "text",
  "data.tokenizer.name": "byte",
  "data.seq_len": 16,
  "data.validation_fraction": 0.2,
  "model.num_layers": 2,
  "model.d_model": 16,
  "model.num_heads": 2,
  "model.num_kv_heads": 1,
  "model.mlp_dim": 24,
  "model.residual.name": "standard",
  "train.steps": STEPS,
  "train.batch_size": 8,
  "train.log_every": 1,
  "train.eval_every": 2,
  "train.eval_rows": 0,
  "train.alignment_every": 0,
  "train.sample_tokens": 0,
  "checkpoint.every": 2,
  "optim.warmup_steps": 1,
  "optim.schedule": "constant",  # so that further steps change none of the earlier ones
}


def training(config: str = "tiny", **settings: object) -> tuple[str, ...]:
  """Returns the arguments of resjax train for the small run; a__b=c sets config.a.b."""
  changed = {name.replace("__", "."): value for name, value in settings.items()}
  flags = [f"--config.{key}={value}" for key, value in (_SMALL | changed).items()]
  return (f"--config={ROOT}/configs/{config}.py", *flags)


# One pass over all rows of the built data, in a folder of its own.
PASS = training(workdir="out", train__steps=14, train__batch_size=32, train__eval_every=14)
EXPORT = ("--checkpoint=run", "--out=out")
GENERATE = ("--checkpoint=run", "--num_tokens=6")
INTERVENE = (
  "--hf=hf", "--data=text", "--out=out/cuts.json", "--alphas=0", "--layers=0", "--noalignment",
  "--tokens=64", "--seq_len=16",
)  # fmt: skip
EVALUATE = ("--hf=hf", "--max_length=16", "--out=out")
INSPECT = ("--what=attribution", "--hf=hf", "--text=depth", "--out=out")
ANALYZE = ("--hf=hf", "--data=text", "--out=out", "--tokens=64", "--seq_len=16")
BUILD = training(data__root="out", data__tokenizer__name="bpe", data__tokenizer__vocab_size=300)


# One run of a sweep, in a folder that is a link to the run.
COLLECT = (
  "--config=sweep.py", *training(workdir="sweep")[1:], "--collect",
)  # fmt: skip
PLANNED = (
  "--config=sweep.py", *training(workdir="planned")[1:], "--collect", "--seeds=0,1",
)  # fmt: skip
LADDER = ("--workdir=ladder",)
RUNGS = ("a", "b", "c", "d")
RETRIEVAL = (
  "--systems=standard", "--task=fixed:0", "--layers=1", "--seeds=0", "--out=retrieval",
)  # fmt: skip
_SWEEP = """\
from configs import tiny


def get_config():
  return tiny.get_config()


def sweep(config):
  yield "standard", {"model.residual.name": "standard"}
"""


def write(folder: Path) -> None:
  """Writes what needs no command: texts, a Hugging Face model, and the victim beside them."""
  folder.mkdir()
  (folder / "text").mkdir()
  generator = np.random.default_rng(0)
  for number in range(16):
    words = " ".join(generator.choice(_WORDS, 60))
    (folder / "text" / f"{number}.txt").write_text(words)
  pretrained.folder(folder).rename(folder / "hf")
  (folder / "hf" / "reference.npz").unlink(missing_ok=True)
  (folder / "sweep.py").write_text(_SWEEP)
  (folder / "sweep").mkdir()
  (folder / "sweep" / "standard").symlink_to("../run")
  write_victim(folder / "victim")


def write_ladder(folder: Path) -> None:
  """Writes a sweep whose runs are like the small one, but for losses that fall with the steps."""
  record = json.loads((folder / "run" / "run.json").read_text())
  plan = (folder / "planned" / "plan.json").read_text()
  for number, rung in enumerate(RUNGS):
    run = folder / "ladder" / f"{rung}-standard"
    steps = record["config"]["train"]["steps"] = 10 * 4**number
    losses = [{"step": 0, "validation/loss": 6.0}, {"step": steps, "validation/loss": 5 - number}]
    for seed in (0, 1):
      one = run / f"seed_{seed}"
      one.mkdir(parents=True)
      (one / "run.json").write_text(json.dumps(record))
      (one / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in losses))
  (folder / "ladder" / "plan.json").write_text(plan)


def write_victim(folder: Path) -> None:
  """Writes a folder that no command may touch."""
  (folder / "inner").mkdir(parents=True)
  (folder / "kept.txt").write_text("kept")
  (folder / "inner" / "kept.safetensors").write_bytes(bytes(64))


def exported(folder: Path) -> bytes:
  """Returns the tensors that resjax export has written."""
  return (folder / "out" / "model.safetensors").read_bytes()


def cuts(folder: Path) -> bytes:
  """Returns the figures that resjax intervene has written."""
  return (folder / "out" / "cuts.json").read_bytes()


def losses(folder: Path, run: str) -> bytes:
  """Returns the losses of a run as text, one line for each step and evaluation."""
  lines = []
  for line in (folder / run / "metrics.jsonl").read_text().splitlines():
    record = json.loads(line)
    kept = {key: record[key] for key in sorted(record) if "loss" in key or key == "step"}
    lines.append(json.dumps(kept))
  return "\n".join(lines).encode()


def copy(original: Path, place: Path) -> None:
  """Makes a place anew, with the times of the original."""
  shutil.rmtree(place, ignore_errors=True)
  shutil.copytree(original, place, symlinks=True)
