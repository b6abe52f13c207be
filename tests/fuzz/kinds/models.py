"""Folders of Hugging Face models from anywhere, and the figures of other commands."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import mutations, originals
from tests.fuzz.cases import Case, Check, ended_well
from tests.fuzz.kinds.runs import replaced, same
from tests.fuzz.mutations import Mutation

_FROM_MODEL = originals.training(
  "finetune", workdir="out", train__init_from="hf", data__tokenizer__name="pretrained"
)


def _case(draw: st.DrawFn, kind: str, file: str, changed: Mutation, tolerant: bool = True) -> Case:
  """Returns a case of a Hugging Face folder of which a file was changed."""
  right: Check = ended_well if changed.plausible and tolerant else same("cuts")
  return Case(
    kind=kind,
    command="intervene",
    arguments=originals.INTERVENE,
    what=f"{file}: {changed.what}",
    damage=replaced(f"hf/{file}", changed.content),
    names=(file, changed.key, "--hf", "hf"),
    right=right,
  )


@st.composite
def config(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged config.json or generation_config.json."""
  if draw(st.integers(0, 5)) == 0:
    file = "generation_config.json"
    text = json.loads((original / "hf" / file).read_text())
    return _case(draw, "hf_config", file, draw(mutations.of_json(text)))
  text = json.loads((original / "hf" / "config.json").read_text())
  changed = draw(mutations.of_json(text, prefer=tuple(text)))
  # A setting that is null is one that is missing.
  plausible = mutations.similar(text, _without_nulls(changed.content))
  return _case(draw, "hf_config", "config.json", dataclasses.replace(changed, plausible=plausible))


def _without_nulls(text: bytes) -> bytes:
  """Returns JSON without the keys whose value is null; what is no JSON as it is."""
  try:
    found = json.loads(
      text, object_hook=lambda one: {k: v for k, v in one.items() if v is not None}
    )
  except (ValueError, RecursionError):
    return text
  return json.dumps(found).encode()


@st.composite
def index(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged index of shards, whose names may lead anywhere."""
  file = "model.safetensors.index.json"
  text = json.loads((original / "hf" / file).read_text())
  changed = draw(mutations.of_json(text, prefer=tuple(text["weight_map"])))
  return _case(draw, "hf_index", file, changed, tolerant=False)


@st.composite
def tensors(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged file of tensors."""
  files = sorted((original / "hf").glob("*.safetensors"))
  path = draw(st.sampled_from(files))
  changed = draw(mutations.of_safetensors(path.read_bytes()))
  return _case(draw, "safetensors", path.name, changed)


@st.composite
def tokenizer(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged tokenizer.json of a Hugging Face model, or of a run."""
  prefer = ("vocab", "merges", "type", "id", "content", "added_tokens", "model", "version")
  if draw(st.booleans()):
    path = original / "hf" / "tokenizer.json"
    changed = draw(mutations.of_json(json.loads(path.read_text()), prefer=prefer))
    return _case(draw, "tokenizer", "tokenizer.json", changed)
  text = json.loads((original / "run" / "tokenizer.json").read_text())
  changed = draw(mutations.of_json(text, prefer=prefer))
  return Case(
    kind="tokenizer",
    command="generate",
    arguments=originals.GENERATE,
    what=f"run/tokenizer.json: {changed.what}",
    damage=replaced("run/tokenizer.json", changed.content),
    names=("tokenizer.json", changed.key),
    right=same("generate"),
  )


@st.composite
def sensitivity(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged file for resjax analyze --sensitivity."""
  text = json.loads((original / "cuts.json").read_text())
  changed = draw(mutations.of_json(text, prefer=tuple(text)))
  return Case(
    kind="sensitivity",
    command="analyze",
    arguments=(*originals.ANALYZE, "--sensitivity=cuts.json"),
    what=f"cuts.json: {changed.what}",
    damage=replaced("cuts.json", changed.content),
    names=("sensitivity", "cuts.json"),
    right=ended_well if _other_figures(text, changed.content) else _unless_same,
  )


def _other_figures(original: dict[str, Any], content: bytes) -> bool:
  """Returns whether JSON may be the sensitivity of another model, whose losses may be null (NaN).

  The file has no checksum: a flipped bit in a digit makes another figure.
  """
  try:
    found = json.loads(content)
    rows = [[0.0 if loss is None else loss for loss in row] for row in found["loss"]]
    whole = found | {"loss": rows, "baseline_loss": found["baseline_loss"] or 0.0}
    if whole["sites"] in [[site] for site in original["sites"]]:  # the cut of one site alone
      whole["sites"] = original["sites"]
  except (ValueError, RecursionError, TypeError, KeyError):
    return False
  return mutations.similar(original, json.dumps(whole).encode())


def _unless_same(place, done) -> str:
  del done
  found = json.loads((place.path("out") / "results.json").read_text())
  shown = [one for model in found["models"] for one in model.get("sensitivities", [])]
  return "figures of another form were drawn" if shown else ""
