"""What pages say of the models of a sweep: gates, cosines, and where the next token emerges.

  python -m docs.findings.swept_models SWEEP ANALYSES

keeps plan.json and results.json of the folder SWEEP, of arms that were run, in the folder of
docs/findings with its name, and models.json with what is needed of ANALYSES, which has a folder for
each arm with the results.json of `resjax analyze`, whose models are called by their seeds. A page
has, in terms of the baseline and of all arms as one family,

  NAME.ARM.gap         the difference of cos(next) - cos(input) at the last state
  NAME.ARM.emergence   the difference of the layer after which the next token emerges
  NAME.ARM.factor      the factor of a layer, its geometric mean over layers
  NAME.ARM.attenuation the mean attenuation of all layers together, and which one has most of it
  NAME.ARM.share       the share of the last layer, and in how many models it is the largest
  NAME.ARM.located     what that says, see `resjax.study.analysis.stream_factors.concentration`
  NAME.emergence       the layer of the baseline
  NAME.gap             the gap of the baseline
"""

import dataclasses
import json
import pathlib
import re
import sys
from collections import Counter

import numpy as np

from docs.findings import words
from resjax.base import typed_json
from resjax.study.analysis import stream_factors
from resjax.study.analysis.report import Results, results
from resjax.study.statistics import Contrast, compare
from resjax.study.sweeps import Result, comparison, plan, table

FOLDER = pathlib.Path(__file__).parent
FILE_NAME = "models.json"


@dataclasses.dataclass(frozen=True)
class Model:
  """What is kept of a model.

  Attributes:
    arm: its arm in the sweep.
    seed: its seed.
    cosine_input: the mean cosine of states and the input token, after the embedding and each layer.
    cosine_next: the same of the next token.
    emergence: the layer after which the next token emerges by its probability; None: it does not.
    factors: the mean factors of the stream by layer and site; none if it has none.
  """

  arm: str
  seed: int
  cosine_input: list[float]
  cosine_next: list[float]
  emergence: int | None
  factors: list[list[float]]


@dataclasses.dataclass(frozen=True)
class _Kept:
  sites: list[str]
  models: list[Model]


def keep(sweep: str, analyses: str) -> None:
  """Keeps a sweep and what its analyses say of its models."""
  source, kept = pathlib.Path(sweep), FOLDER / pathlib.Path(sweep).name
  keep_sweep(source, kept)
  models, sites = [], list[str]()
  for path in sorted(pathlib.Path(analyses).glob("*/results.json")):
    for one in results.from_json(path.read_text(), str(path)):
      models.append(_model(path.parent.name, one))
      sites = list(one.factors.sites) if one.factors else sites
  models.sort(key=lambda model: (model.arm, model.seed))
  text = json.dumps(dataclasses.asdict(_Kept(sites, models)), indent=1) + "\n"
  (kept / FILE_NAME).write_text(text)


def keep_sweep(source: pathlib.Path, kept: pathlib.Path) -> None:
  """Keeps the plan and the runs of a sweep, without arms of which nothing was run (--only).

  A sweep may be run in pieces, on several machines: arms that were kept before stay, unless they
  are among those of `source`. The piece with the baseline is kept first.

  Raises:
    ValueError: the baseline is in no piece, or another plan was kept there.
  """
  planned, runs = _read_sweep(source)
  if (kept / table.FILE_NAME).exists():
    before, earlier = _read_sweep(kept)
    asked = [dataclasses.replace(one.questions, contrasts=()) for one in (before, planned)]
    if asked[0] != asked[1]:
      raise ValueError(f"{kept} has another plan than {source}; delete it, or name another folder")
    runs = [run for run in earlier if run.arm not in planned.arms] + runs
    arms, tuned = before.arms | planned.arms, before.tuned | planned.tuned
    planned = dataclasses.replace(planned, arms=arms, tuned=tuned)
    runs.sort(key=lambda run: [*arms].index(run.arm))
  if planned.questions.baseline not in planned.arms:
    raise ValueError(f"{source} lacks {planned.questions.baseline!r}; keep the piece with it first")
  pairs = tuple(p for p in planned.questions.contrasts if planned.arms.keys() >= {*p})
  questions = dataclasses.replace(planned.questions, contrasts=pairs)
  planned = dataclasses.replace(planned, questions=questions)
  plan.write(kept, planned)
  (_, as_csv) = table.save(runs, kept, comparison.make(planned, runs))
  as_csv.unlink()


def _read_sweep(folder: pathlib.Path) -> tuple[plan.Plan, list[Result]]:
  """Returns the plan and the runs of a sweep, of arms that were run."""
  planned, runs = plan.read(folder), table.read(folder).runs
  assert planned is not None
  run_arms = {run.arm for run in runs if run.value is not None}
  arms = {arm: made for arm, made in planned.arms.items() if arm in run_arms}
  return dataclasses.replace(planned, arms=arms), [run for run in runs if run.arm in arms]


def _model(arm: str, found: Results) -> Model:
  named = re.search(r"seed_(\d+)", found.alignment.model)
  if named is None:
    raise ValueError(f"arm {arm!r}: the model {found.alignment.model!r} names no seed")
  group = found.alignment.readings["closed"]["all"]
  emergence = group.shifts["probability"].emergence.index
  return Model(
    arm,
    int(named[1]),
    *(_digits(group.metrics[f"cosine_{token}"]).tolist() for token in ("input", "next")),
    None if emergence is None else found.alignment.positions[emergence].layer,
    [] if found.factors is None else _digits(found.factors.means).tolist(),
  )


def _digits(values: np.ndarray) -> np.ndarray:
  return np.vectorize(lambda value: float(f"{value:.7g}"))(values)


def numbers(folder: pathlib.Path) -> dict[str, str]:
  """Returns what a page may say of the models of a kept sweep."""
  kept = typed_json.read(folder / FILE_NAME, _Kept)
  planned = plan.read(folder)
  assert planned is not None
  arms: dict[str, list[Model]] = {}
  for one in kept.models:
    arms.setdefault(one.arm, []).append(one)
  found: dict[str, str] = {}
  baseline = planned.questions.baseline
  gaps = {arm: {m.seed: _gap(m) for m in models} for arm, models in arms.items()}
  layers = {
    arm: {m.seed: float(m.emergence) for m in models if m.emergence is not None}
    for arm, models in arms.items()
  }
  for name, values in (("gap", gaps), ("emergence", layers)):
    found[name] = words.mean([*values[baseline].values()])
    known = [Contrast(arm, baseline) for arm in values if arm != baseline and values[arm]]
    for one in compare(values, known):
      found[f"{one.contrast.arm}.{name}"] = words.difference(one)
  for arm, models in arms.items():
    learned = len({repr(one.factors) for one in models}) > 1  # factors of cuts are settings
    if learned and models[0].factors:
      located = _located(kept.sites, models)
      found |= {f"{arm}.{name}": text for name, text in located.items()}
  return found


def _gap(model: Model) -> float:
  return model.cosine_next[-1] - model.cosine_input[-1]


def _located(sites: list[str], models: list[Model]) -> dict[str, str]:
  """Returns how much the factors of an arm attenuate the stream, and where."""
  factors = []
  for one in models:
    means = np.array(one.factors)
    factors.append(stream_factors.StreamFactors(tuple(sites), means, np.zeros_like(means)))
  totals = [float(one.attenuations.sum()) for one in factors]
  typical = [float(np.exp(np.log(one.of_layers).mean())) for one in factors]
  largest = Counter(int(np.argmax(one.attenuations)) for one in factors).most_common(1)[0]
  share = stream_factors.concentration(factors)
  known = [100 * each for each in share.shares if each is not None]
  mean = f"too little to locate in {len(models) - len(known)} of {len(models)}"
  if len(known) == len(models):
    mean = f"{words.mean(known, ' %')}; the largest in {share.last_is_largest} of {len(models)}"
  place = f"; layer {largest[0]} most in {largest[1]}"
  return {
    "factor": words.mean(typical),
    "attenuation": words.mean(totals) + place if any(totals) else "none",
    "share": mean,
    "located": share.verdict,
  }


if __name__ == "__main__":
  keep(*sys.argv[1:])
