"""Plans and results of sweeps, made without training."""

from configs import tiny
from resjax.study.sweeps import plan as plans
from resjax.study.sweeps.results import Environment, result
from resjax.study.sweeps.runs import expand

ARMS = {"standard": {}, "gate": {"model.residual.name": "gate"}, "rezero": {}, "laurel": {}}
COSTS = {"parameters": 1000, "state_bytes_per_token": 64, "training_flops_per_token": 5e6}


def config(workdir="runs/made"):
  c = tiny.get_config()
  c.workdir = str(workdir)
  c.train.steps = 4
  c.lock()
  return c


def runs(seeds=(0, 1, 2), arms=ARMS, workdir="runs/made"):
  return expand(config(workdir), arms.items(), seeds)


def plan(seeds=(0, 1, 2), arms=ARMS, now=1000.0, code="c0de", **declared):
  asked = plans.questions(declared, list(arms), seeds=seeds)
  return plans.make(asked, runs(seeds, arms), code, now)


def records(value, *, time=2000.0, speed=100.0, size=1000, steps=4):
  evaluations = [
    {"step": step, "validation/loss": v and 2 * v, "validation/bits_per_byte": v}
    for step, v in ((steps // 2, value and value + 1), (steps, value))
  ]
  first = {"step": 1, "train/loss": 3.0, "goodput/unix_time": time, "memory/step_bytes": size}
  return [{**first, "time/tokens_per_second": speed}, *evaluations]


def results(values, given=None, git="c0de", devices=("cpu",), **more):
  """Results of all runs whose value is in a table {(arm, seed): value}; a value may be records."""
  given = runs() if given is None else given
  found = []
  for run in given:
    value = values.get((run.arm, run.seed))
    one = value if isinstance(value, list) else [] if value is None else records(value, **more)
    where = Environment(git, devices)
    found.append(result(run, one, COSTS if one else {}, environment=where))
  return found
