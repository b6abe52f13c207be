"""The figures of docs/findings/real_models.md, from what commands of that page wrote.

  python -m docs.findings.real_models FILE.json [FILE.json ...]

keeps in docs/findings/real_models what the page needs of the files of `resjax analyze`, in shift,
and of those of `resjax intervene`, which are called MODEL-TEXT.json, in slopes (alpha 1) or cuts.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterable

import numpy as np

from resjax.study.analysis import Alignment, Sensitivity, Shift, depth_positions
from resjax.study.analysis.report import results
from resjax.study.statistics import t_quantile

FOLDER = pathlib.Path(__file__).with_suffix("")
TOKENS = [f"{token}_{kind}" for token in ("input", "next") for kind in ("log_rank", "probability")]
KEPT = (*TOKENS, "cosine_input", "cosine_next", "projection_input", "projection_next")
TEXTS = {"wiki": "WikiText-2", "lambada": "LAMBADA", "stdlib": "Python's library"}


def keep(*files: str) -> None:
  """Writes what the page needs of files that commands wrote, without the places of texts."""
  for file in map(pathlib.Path, files):
    text = file.read_text()
    if "models" in json.loads(text):
      for one in results.from_json(text, str(file)):
        _write("shift", one.alignment.model, shortened(one.alignment))
    else:
      cuts = Sensitivity.from_json(text, str(file))
      kind = "slopes" if cuts.alphas == (1.0,) else "cuts"
      named = dataclasses.replace(cuts, corpus=pathlib.Path(cuts.corpus).name)
      _write(kind, file.stem, named)


def _write(kind: str, name: str, found: Alignment | Sensitivity) -> None:
  (FOLDER / kind).mkdir(parents=True, exist_ok=True)
  (FOLDER / kind / f"{name}.json").write_text(found.to_json().rstrip() + "\n")


def shortened(alignment: Alignment) -> Alignment:
  """Returns the closed reading of an alignment with `KEPT` metrics, to seven digits."""

  def digits(metrics: dict) -> dict:
    kept = {name: values for name, values in metrics.items() if name in KEPT}
    return {
      name: np.array([float(f"{value:.7g}") for value in values]) for name, values in kept.items()
    }

  groups = {
    name: dataclasses.replace(
      group, metrics=digits(group.metrics), standard_errors=digits(group.standard_errors)
    )
    for name, group in alignment.readings["closed"].items()
  }
  corpus = pathlib.Path(alignment.corpus).name
  return dataclasses.replace(alignment, corpus=corpus, readings={"closed": groups})


def numbers() -> dict[str, str]:
  """Returns the tables and figures of the page by name."""
  models = [
    Alignment.from_json(path.read_text(), str(path))
    for path in sorted((FOLDER / "shift").glob("*.json"), reverse=True)
  ]
  found = {"shift": shift_table(models), "measures": measure_table(models)}
  found |= {"ranks": rank_table(models), "deciles": decile_table(models)}
  for one in models:
    shifts = one.readings["closed"]["all"].shifts
    found[f"{one.model}.crossing_ranks"] = crossing_ranks(one, shifts["log_rank"])
    for measure, shift in shifts.items():
      found[f"{one.model}.by_{measure}"] = depth_positions.emergence_text(one, shift)
  found |= {"cuts": cut_table(), "slopes": slope_table(), "depth": depth_table()}
  return found | patching() | agreement() | tuned_lens() | depth_agreement() | pruned_text()


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  """Returns a table in Markdown, with the empty lines that a mark around it needs."""
  heads = list(heads)
  lines = [heads, ["---"] * len(heads), *rows]
  return "\n".join(("", *(f"| {' | '.join(line)} |" for line in lines), ""))


def shift_table(models: list[Alignment]) -> str:
  """Returns the shift of every model by probability, and of its shuffled targets."""
  columns = []
  for one in models:
    ranks = one.readings["closed"]["all"].shifts["log_rank"]
    columns.append(
      [
        one.model,
        str(depth_positions.num_layers(one)),
        f"{one.readings['closed']['all'].num_tokens:,}",
        *depth_positions.cells(one, depth_positions.shift_of(one)),
        depth_positions.crossing_text(one, ranks),
        depth_positions.emergence_text(one, depth_positions.shift_of(one, "shuffled")),
      ]
    )
  names = ["model", "layers", "tokens", "input token lost", "next token emerges"]
  names += ["10 to 90 % of it after layers", "neither is read", "ranks cross", "shuffled targets"]
  heads, *rows = zip(names, *columns, strict=True)
  return table(heads, rows)


def measure_table(models: list[Alignment]) -> str:
  """Returns where the next token emerges by each measure."""
  measures = list(models[0].readings["closed"]["all"].shifts)
  rows = [
    [
      one.model,
      *(
        depth_positions.emergence_text(one, one.readings["closed"]["all"].shifts[measure])
        for measure in measures
      ),
    ]
    for one in models
  ]
  return table(["model", *(name.replace("_", "-") for name in measures)], rows)


def rank_table(models: list[Alignment]) -> str:
  """Returns geometric mean ranks and probabilities at quarters of the depth."""
  rows = []
  for one in models:
    metrics, depth = one.readings["closed"]["all"].metrics, len(one.positions) - 1
    for kind in ("log_rank", "probability"):
      cells = []
      for share in (0, 0.25, 0.5, 0.75, 1):
        pair = [metrics[f"{token}_{kind}"][round(share * depth)] for token in ("input", "next")]
        cells.append(", ".join(map(_rank if kind == "log_rank" else "{:.3f}".format, pair)))
      rows.append([one.model, "rank" if kind == "log_rank" else "probability", *cells])
  return table(["model", "input, next", "embedding", "1/4", "1/2", "3/4", "end"], rows)


def crossing_ranks(one: Alignment, shift: Shift) -> str:
  """Returns where the ranks of both tokens cross, and their geometric means there."""
  metrics, at = one.readings["closed"]["all"].metrics, shift.any_crossing.index
  if at is None:
    return "nowhere"
  ranks = [_rank(metrics[f"{token}_log_rank"][at]) for token in ("input", "next")]
  share = at / (len(one.positions) - 1)
  return f"layer {at - 1}, at {share:.0%} of the depth, where they are {' and '.join(ranks)}"


def _rank(log_rank: float) -> str:
  rank = np.exp(log_rank)
  return f"{rank:,.0f}" if rank >= 100 else f"{rank:.3g}"


def decile_table(models: list[Alignment]) -> str:
  """Returns where the next token emerges by how frequent it is, each tenth for itself."""
  names = {f"decile_{number}": f"{number + 1}" for number in range(10)} | {"balanced": "all alike"}
  names |= {"decile_0": "1, most frequent", "decile_9": "10, rarest"}
  rows = [
    [
      name,
      *(
        depth_positions.emergence_text(one, depth_positions.shift_of(one, group)) for one in models
      ),
    ]
    for group, name in names.items()
  ]
  return table(["tenth", *(one.model for one in models)], rows)


def patching() -> dict[str, str]:
  """Returns from which layer on the last token carries the answer, by model."""
  found = {}
  for model, one in json.loads((FOLDER / "patching.json").read_text()).items():
    layers = [pair["last_from"] for pair in one["pairs"]]
    until = [pair["subject_until"] for pair in one["pairs"]]
    found[f"{model}.last_from"] = _same(layers)
    found[f"{model}.subject_until"] = _same(until)
  return found


def _same(layers: list[int]) -> str:
  """Returns layers of pairs in words."""
  common = max(set(layers), key=layers.count)
  return f"layer {common} in {layers.count(common)} of {len(layers)} pairs"


def agreement() -> dict[str, str]:
  """Returns how far metrics and the entropy are from a script in torch at most, by model."""
  found = {}
  for model, one in json.loads((FOLDER / "lens_in_torch.json").read_text()).items():
    entropy = one["largest_relative_difference"].pop("entropy")
    most = max(one["largest_relative_difference"].values())
    found |= {f"{model}.torch": f"{most:.1e} ({one['tokens']:,} tokens)"}
    found |= {f"{model}.torch.entropy": f"{entropy:.1e}"}
  return found


def tuned_lens() -> dict[str, str]:
  """Returns what both lenses say of SmolLM2, and where the tuned one is half way to the end."""
  one = json.loads((FOLDER / "lens" / "smollm2-135m.json").read_text())
  layers = [position["layer"] for position in one["positions"]]
  half = t_quantile(one["num_rows"] - 1) * np.array(one["kl_errors"])
  rows = [
    [
      f"{layer}",
      *(f"{kl[i]:.2f} ± {h[i]:.2f}" for kl, h in zip(one["kl"], half, strict=True)),
      *(f"{nats[i]:.2f}" for nats in one["nats"]),
    ]
    for i, layer in enumerate(layers)
  ]
  kinds = [f"{figure}, {lens} lens" for figure in ("KL", "loss") for lens in ("logit", "tuned")]
  tuned = one["kl"][1]
  before = max(layer for layer, kl in zip(layers, tuned, strict=True) if kl > tuned[0] / 2)
  after = min(layer for layer, kl in zip(layers, tuned, strict=True) if kl <= tuned[0] / 2)
  tokens = f"{one['num_tokens']:,} tokens in {one['num_rows']} rows"
  halved = f"between layers {before} and {after}"
  return {"lens": table(["after layer", *kinds], rows), "lens.tokens": tokens, "lens.half": halved}


def depth_agreement() -> dict[str, str]:
  """Returns how far the depth probes are from loops in torch at most, by model."""
  return {
    f"{model}.depth_torch": f"{max(one['largest_relative_difference'].values()):.1e}"
    f" ({one['probes']['num_tokens']:,} tokens)"
    for model, one in _in_torch().items()
  }


def _in_torch() -> dict[str, dict]:
  return json.loads((FOLDER / "depth_in_torch.json").read_text())


def depth_table() -> str:
  """Returns what the layers of each model are good for: means by thirds of the depth, and ends."""
  rows = []
  for model, one in _in_torch().items():
    probes, depth = one["probes"], one["probes"]["num_layers"]
    angular = {key: np.diagonal(np.array(a, float), 1) for key, a in probes["angular"].items()}
    named = {
      "angle to the next state, over π": angular,
      "change of later updates without the layer": probes["causal_mean"],
      "loss without the layer, nats above the whole": probes["skipped"],
      "change of the loss, swapped with the next": probes["permutation"],
      "Jacobian, ‖J − I‖ / √W": probes["jacobian"],
    }
    for name, found in named.items():
      mean, half = (np.array(found[key], float) for key in ("mean", "half"))
      thirds = (mean[layers[layers < len(mean)]] for layers in np.array_split(np.arange(depth), 3))
      ends = (int(np.nanargmin(mean)), int(np.nanargmax(mean)))
      cells = [f"layer {at}: {mean[at]:.4f} ± {half[at]:.4f}" for at in ends]
      rows.append([model, name, *(f"{np.nanmean(part):.4f}" for part in thirds), *cells])
  return table(["model", "probe", "first third", "second", "last", "least", "most"], rows)


def pruned_text() -> dict[str, str]:
  """Returns the loss without several layers, by model."""
  found = {}
  for model, one in _in_torch().items():
    pruned, loss = one["probes"]["pruned"]["mean"], one["probes"]["loss"]
    shown = [n for n in (1, 3, 5, 10, 15) if n <= len(pruned)]
    parts = ", ".join(f"{pruned[n - 1]:+.2f} without {n}" for n in shown)
    found[f"{model}.pruned"] = f"{parts} (of {loss:.2f} nats)"
  return found


def sensitivities(kind: str) -> dict[tuple[str, str], Sensitivity]:
  """Returns what `resjax intervene` wrote, by model and text."""
  found = {}
  for path in sorted((FOLDER / kind).glob("*.json"), reverse=True):
    model, text = path.stem.rsplit("-", 1)
    found[model, text] = Sensitivity.from_json(path.read_text(), str(path))
  return found


def slope_table() -> str:
  """Returns the slopes of all sites in parts of the depth, and how many are sure."""
  rows = []
  for (model, text), one in sensitivities("slopes").items():
    count = f"{one.num_tokens:,}"
    cells, quantile = [], t_quantile(one.num_rows - 1)
    for third in np.array_split(np.arange(len(one.layers)), 3):
      low, high = one.slopes[third].min(), one.slopes[third].max()
      sure = np.abs(one.slopes[third]) > quantile * one.slope_errors[third]
      up, down = ((sign * one.slopes[third] > 0) & sure for sign in (1, -1))
      cells.append(f"{low:+.3f} to {high:+.3f}; {up.sum()} up, {down.sum()} down of {sure.size}")
    rows.append([model, TEXTS[text], count, *cells])
  thirds = ["first third of the layers", "second", "last"]
  return table(["model", "text", "tokens", *thirds], rows)


def cut_table() -> str:
  """Returns what mild cuts of a layer cost without training: the least and the most.

  To first order a cut changes the loss by ln α times the sum of the slopes of its sites.
  """
  rows = []
  for (model, text), one in sensitivities("cuts").items():
    for index, alpha in enumerate(one.alphas):
      above = one.loss[:, index] - one.baseline_loss
      half = t_quantile(one.num_rows - 1) * one.errors[:, index]
      first = np.log(alpha) * one.slopes.sum(axis=1)
      shown = np.argsort(above)[[0, 1, 2, -1]]
      named = [f"layer {one.layers[i]}: {above[i]:+.4f} ± {half[i]:.4f}" for i in shown]
      orders = ", ".join(f"{first[i]:+.4f}" for i in shown)
      same = f"{np.sum(first * above > 0)} of {len(above)}"
      gains = str(np.sum(above + half < 0))
      rows.append(
        [model, TEXTS[text], f"{alpha:g}", f"{one.baseline_loss:.4f}", *named, gains, orders, same]
      )
  heads = ["model", "text", "alpha", "loss", "cheapest", "second", "third", "dearest"]
  return table([*heads, "cuts that gain", "first order of the four", "of the same sign"], rows)


if __name__ == "__main__":
  keep(*sys.argv[1:])
