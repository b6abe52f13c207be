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

from resjax.study.analysis import Alignment, Sensitivity, depth_positions
from resjax.study.analysis.report import results

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
    found[f"{one.model}.tokens"] = f"{one.readings['closed']['all'].num_tokens:,}"
    found[f"{one.model}.answer"] = depth_positions.answer(one)
  return found | patching() | agreement() | {"cuts": cut_table(), "slopes": slope_table()}


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  """Returns a table in Markdown, with the empty lines that a mark around it needs."""
  heads = list(heads)
  lines = [heads, ["---"] * len(heads), *rows]
  return "\n".join(("", *(f"| {' | '.join(line)} |" for line in lines), ""))


def shift_table(models: list[Alignment]) -> str:
  """Returns the shift of every model, and of its shuffled targets."""
  heads = ["model", "layers", "tokens", "input token lost", "next token emerges", "10 to 90 %"]
  heads += ["neither is read", "ranks cross", "shuffled targets"]
  rows = []
  for one in models:
    shift = depth_positions.shift_of(one)
    ranks = one.readings["closed"]["all"].shifts["log_rank"]
    told = depth_positions.cells(one, shift)[:4]
    shuffled = depth_positions.emergence_text(one, depth_positions.shift_of(one, "shuffled"))
    count = f"{one.readings['closed']['all'].num_tokens:,}"
    layers = str(depth_positions.num_layers(one))
    crossing = depth_positions.crossing_text(one, ranks)
    rows.append([one.model, layers, count, *told, crossing, shuffled])
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


def _rank(log_rank: float) -> str:
  rank = np.exp(log_rank)
  return f"{rank:,.0f}" if rank >= 100 else f"{rank:.3g}"


def decile_table(models: list[Alignment]) -> str:
  """Returns where the next token emerges by how frequent it is, each tenth for itself."""
  rows, alike = [], []
  for number in range(10):
    row = [f"{number + 1}" + {0: ", most frequent", 9: ", rarest"}.get(number, "")]
    for one in models:
      row.append(
        depth_positions.emergence_text(one, depth_positions.shift_of(one, f"decile_{number}"))
      )
    rows.append(row)
  for one in models:
    at = [depth_positions.shift_of(one, f"decile_{number}") for number in range(10)]
    layers = [shift.emergence.index - 1 for shift in at if shift and shift.emergence.index]
    alike.append(f"layer {np.mean(layers):.1f}")
  return table(["tenth", *(one.model for one in models)], [*rows, ["mean, all alike", *alike]])


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
  """Returns how far the metrics are from a script in torch at most, by model."""
  found = json.loads((FOLDER / "lens_in_torch.json").read_text())
  return {
    f"{model}.torch": f"{max(one['largest_relative_difference'].values()):.1e}"
    f" ({one['tokens']:,} tokens)"
    for model, one in found.items()
  }


def sensitivities(kind: str) -> dict[tuple[str, str], Sensitivity]:
  """Returns what `resjax intervene` wrote, by model and text."""
  found = {}
  for path in sorted((FOLDER / kind).glob("*.json"), reverse=True):
    model, text = path.stem.rsplit("-", 1)
    found[model, text] = Sensitivity.from_json(path.read_text(), str(path))
  return found


def slope_table() -> str:
  """Returns the slopes of attention sites in parts of the depth, and how many are sure."""
  rows = []
  for (model, text), one in sensitivities("slopes").items():
    count = f"{one.num_tokens:,}"
    cells = []
    for third in np.array_split(np.arange(len(one.layers)), 3):
      low, high = one.slopes[third].min(), one.slopes[third].max()
      sure = np.abs(one.slopes[third]) > 1.96 * one.slope_errors[third]
      up, down = ((sign * one.slopes[third] > 0) & sure for sign in (1, -1))
      cells.append(f"{low:+.3f} to {high:+.3f}; {up.sum()} up, {down.sum()} down of {sure.size}")
    rows.append([model, TEXTS[text], count, *cells])
  thirds = ["first third of the layers", "second", "last"]
  return table(["model", "text", "tokens", *thirds], rows)


def cut_table() -> str:
  """Returns what mild cuts of a layer cost without training: the least and the most."""
  rows = []
  for (model, text), one in sensitivities("cuts").items():
    for index, alpha in enumerate(one.alphas):
      above, errors = one.loss[:, index] - one.baseline_loss, one.errors[:, index]
      order = np.argsort(above)
      named = [
        f"layer {one.layers[i]}: {above[i]:+.4f} ± {1.96 * errors[i]:.4f}" for i in order[:3]
      ]
      most = order[-1]
      worst = f"layer {one.layers[most]}: {above[most]:+.4f} ± {1.96 * errors[most]:.4f}"
      gains = int(np.sum(above + 1.96 * errors < 0))
      rows.append(
        [model, TEXTS[text], f"{alpha:g}", f"{one.baseline_loss:.4f}", *named, worst, str(gains)]
      )
  heads = ["model", "text", "alpha", "loss", "cheapest", "second", "third", "dearest"]
  return table([*heads, "cuts that gain"], rows)


if __name__ == "__main__":
  keep(*sys.argv[1:])
