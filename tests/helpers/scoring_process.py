"""One of several processes that score rows and run tasks together, for tests.

  python -m tests.helpers.scoring_process rows|error|TASKS_FOLDER

Process 0 leads; what it found is printed as JSON behind `found|`.
"""

import json
import sys

from resjax.base import processes
from resjax.models.model_def import ModelDef
from resjax.study.evaluation import Scored, Scorer
from resjax.study.evaluation.generator import Generator
from resjax.study.evaluation.lockstep import Lockstep
from resjax.study.trained_model import TrainedModel
from tests.helpers import decoders, layouts, tasks

LENGTHS = (5, 70, 20, 33)


def main() -> None:
  processes.initialize(bringup_seconds=60, heartbeat_seconds=30)
  config = decoders.config("llama", vocab_size=64, max_positions=96)
  made = ModelDef(config, layouts.layout("fsdp_tp", fsdp=2))
  model = made.bind(made.init(0))
  try:
    found = tasks_of(model, sys.argv[1]) if "/" in sys.argv[1] else led(model, sys.argv[1])
  except ArithmeticError as error:
    processes.end(f"error: {error}", 1)
  print("found", json.dumps(found), sep="|", flush=True)
  processes.shutdown()


def led(model, what):
  scorer = Scorer(model, max_length=96, batch_size=2)
  generator = Generator(model, max_length=96, batch_size=2)

  def score(rows):
    return [scores.log_probs.tolist() for scores in scorer.score([Scored(*row) for row in rows])]

  def go_on(prompts):
    return generator.generate(prompts, num_tokens=5, stop=(1,))

  lockstep = Lockstep({"score": score, "generate": go_on})
  rows = [(decoders.tokens(model.config, 1, length)[0].tolist(), length // 2) for length in LENGTHS]

  def work():
    first = lockstep.call("score", rows)
    if what == "error":
      raise ArithmeticError("the second task fails")
    return [first, lockstep.call("generate", [tokens for tokens, _ in rows])]

  return lockstep.lead(work)


def tasks_of(model, folder):
  from resjax.interop.lm_eval import run_tasks

  names = [*tasks.NAMES]
  trained = TrainedModel("it", model, tasks.tokenizer(True), 96)
  found = run_tasks(trained, names, tasks_folder=folder)
  return found and {name: list(found["results"][name].values()) for name in tasks.NAMES}


if __name__ == "__main__":
  main()
