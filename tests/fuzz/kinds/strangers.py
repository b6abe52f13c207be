"""What a stranger may put into a run, data or a model so that reading them harms other folders."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import originals
from tests.fuzz.cases import Case, Check, Place, must_refuse
from tests.fuzz.kinds.runs import fine, same

_READ_TEXT = {
  "command": "intervene",
  "arguments": ("--checkpoint=run", *originals.INTERVENE[1:], "--data=run"),
}
_RESUME = {
  "command": "train",
  "arguments": originals.training(train__steps=6),
  "writes": ("run", "data"),
}
_MODEL = {"command": "intervene", "arguments": originals.INTERVENE}
_EXPORT = {"command": "export", "arguments": originals.EXPORT}
_GENERATE = {"command": "generate", "arguments": originals.GENERATE}
_BUILD = {
  "command": "build_dataset",
  "arguments": (*originals.training(), "--config.data.seq_len=8"),
  "writes": ("data",),
}


def cases(original: Path) -> list[Case]:
  """Returns a case for each of the known ways."""
  return [
    *_summaries(original),
    *_records(),
    *_links(),
    *_weight_maps(original),
    _manifest(),
  ]


def _case(
  what: str, damage: Callable[[Place], None], command: dict, right: Check = must_refuse
) -> Case:
  return Case(kind="stranger", what=what, damage=damage, right=right, **command)


def _edited(pattern: str, keys: tuple[str, ...], value: str, more: Callable = lambda place: None):
  """Returns what sets a value in a JSON file, and then damages more."""

  def damage(place: Place) -> None:
    (path,) = place.folder.glob(pattern)
    content = json.loads(path.read_text())
    inner = content
    for key in keys[:-1]:
      inner = inner[key]
    inner[keys[-1]] = value.replace("{victim}", str(place.outside))
    path.write_text(json.dumps(content))
    more(place)

  return damage


def _summaries(original: Path) -> list[Case]:
  """The summary of built data names folders, which a root in a bucket has copied anew."""
  (path,) = (original / "data").glob("summary-*.json")
  pattern = f"data/{path.name}"
  found = []
  for keys in (("tokenizer",), ("corpora", "stdlib", "rows"), ("corpora", "stdlib", "text")):
    for value in ("../victim/missing", "{victim}/inner", "rows/linked/inner"):

      def link(place: Place) -> None:
        place.path("data/rows/linked").symlink_to(place.outside)

      damage = _edited(pattern, keys, value, link)
      what = f"summary: {'.'.join(keys)} is {value}"
      found.append(_case(what, damage, _READ_TEXT))
      if "missing" in value:
        found.append(_case(f"{what}, resumed", damage, _RESUME, same("resumed")))
  return found


def _records() -> list[Case]:
  """The record of a run names the data that it was trained on."""
  record = "run/run.json"
  ways = [
    (("data_fingerprint",), "../../victim/kept"),
    (("data_fingerprint",), "{victim}/kept"),
    (("data_fingerprint",), "x/../../victim/kept"),
    (("config", "data", "root"), "victim"),
    (("config", "data", "root"), "../victim"),
    (("config", "data", "root"), "{victim}"),
    (("config", "workdir"), "{victim}"),
  ]
  found = []
  for keys, value in ways:
    damage, what = _edited(record, keys, value), f"run.json: {'.'.join(keys)} is {value}"
    right = fine if keys[-1] == "workdir" else must_refuse
    found.append(_case(what, damage, _READ_TEXT, right))
  found.append(_case("run.json: root is {victim}, sampled", damage, _GENERATE, fine))
  return found


def _links() -> list[Case]:
  """A lock or a temporary file may be a link to a file elsewhere, which is there or not."""
  found = []
  for name, command in (
    ("run/.lock", _RESUME),
    ("run/.run.json.partial", _RESUME),
    ("run/.tokenizer.json.partial", _RESUME),
    ("data/.lock", _BUILD),
    ("data/.lock", _READ_TEXT),
    ("out/.cuts.json.partial", _MODEL),
    ("out/cuts.json", _MODEL),
    ("run/.lock", _EXPORT),
  ):
    for target in ("kept.txt", "new.txt"):

      def damage(place: Place, name: str = name, target: str = target) -> None:
        path = place.path(name)
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(place.outside / target)

      found.append(
        _case(f"{name} is a link to {target}, {command['command']}", damage, command, fine)
      )
  return found


def _weight_maps(original: Path) -> list[Case]:
  """The index of a model names its files."""
  name = "model.safetensors.index.json"
  first = next(iter(json.loads((original / "hf" / name).read_text())["weight_map"]))
  found = []
  for value in (
    "../elsewhere.safetensors",
    "{victim}/inner/kept.safetensors",
    "x/../../run/run.json",
  ):

    def copy(place: Place) -> None:
      for path in place.path("hf").glob("*.safetensors"):
        place.path("elsewhere.safetensors").write_bytes(path.read_bytes())

    damage = _edited(f"hf/{name}", ("weight_map", first), value, copy)
    found.append(_case(f"weight_map leads to {value}", damage, _MODEL))
  return found


def _manifest() -> Case:
  """The manifest of a checkpoint lists files."""

  def damage(place: Place) -> None:
    path = place.path(f"run/checkpoints/{originals.STEPS}/manifest.json")
    content = json.loads(path.read_text())
    content["files"]["../../../victim/kept.txt"] = [4, "0" * 64]
    path.write_text(json.dumps(content))

  return _case("manifest of a checkpoint lists ../../../victim/kept.txt", damage, _EXPORT)
