"""Files of a run that somebody else sent: its record, its data, its metrics, its checkpoints."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz import mutations, originals
from tests.fuzz.cases import Case, Check, Place
from tests.fuzz.forks import Done

_EXPORT = ("export", originals.EXPORT)
_GENERATE = ("generate", originals.GENERATE)
_COLLECT = ("sweep", originals.COLLECT)
_RESUME = ("train", originals.training(train__steps=6))
_OF_RUN = (
  "intervene",
  ("--checkpoint=run", *originals.INTERVENE[1:], "--data=run"),
)


def same(name: str) -> Check:
  """Returns the check that a command gave what it gives for the valid files.

  A line may also name the checkpoint that another one was replaced by.
  """

  def check(place: Place, done: Done) -> str:
    try:
      match name:
        case "export":
          found = originals.exported(place.folder)
        case "resumed":
          found = originals.losses(place.folder, "run")
        case "pass":
          found = originals.losses(place.folder, "out")
        case "cuts":
          found = originals.cuts(place.folder)
        case _:
          found = done.out
    except OSError as error:
      return f"there is no result: {error}"
    if found == place.expected[name] or b"it was moved or copied there" in done.err:
      return ""
    return f"another result than without it ({name})"

  return check


def _one_of(draw: st.DrawFn, *commands: str) -> dict:
  """Draws one of some commands that read a run, with its check."""
  name = draw(st.sampled_from(commands))
  command, arguments = {
    "export": _EXPORT, "generate": _GENERATE, "resumed": _RESUME, "run_cuts": _OF_RUN,
    "collect": _COLLECT,
  }[name]  # fmt: skip
  writes = {"resumed": ("run", "data"), "collect": ("sweep",)}.get(name, ("out",))
  right = fine if name in ("collect", "run_cuts") else same(name)
  return {"command": command, "arguments": arguments, "right": right, "writes": writes}


def replaced(path: str, content: bytes) -> Callable[[Place], None]:
  """Returns what replaces a file of a place; `{victim}` in it becomes the path of the victim."""

  def damage(place: Place) -> None:
    outside = os.fsencode(place.outside)
    place.path(path).write_bytes(content.replace(b"{victim}", outside))

  return damage


@st.composite
def record(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged run.json."""
  text = json.loads((original / "run" / "run.json").read_text())
  text["config"]["sharding"] = {
    key: value for key, value in text["config"]["sharding"].items() if key in ("name", "fsdp_tp")
  }
  changed = draw(
    mutations.of_json(
      text,
      prefer=("num_layers", "d_model", "root", "data_fingerprint", "vocab_size", "seq_len", "name",
              "windows", "config", "norm", "dtype", "steps", "mlp_dim", "num_heads"),
    )
  )  # fmt: skip
  command = _one_of(draw, "export", "generate", "resumed", "run_cuts", "collect")
  if changed.plausible and not changed.path.startswith("config.model"):
    command["right"] = fine  # another run may have this value; its checkpoints do not depend on it
  names = ("run.json", f"config.{changed.key}", changed.key)
  what = f"run.json: {changed.what}"
  damage = replaced("run/run.json", changed.content)
  return Case(kind="run_json", what=what, damage=damage, names=names, **command)


def fine(place: Place, done: Done) -> str:
  del place, done
  return ""


@st.composite
def summary(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged summary of built data, which names folders."""
  (path,) = (original / "data").glob("summary-*.json")
  text = json.loads(path.read_text())
  prefer = ("rows", "text", "tokenizer", "path", "vocab_size", "seq_len", "corpora")
  changed = draw(mutations.of_json(text, prefer=prefer))
  names = ("summary", "data", changed.key)
  command = _one_of(draw, "generate", "resumed", "run_cuts")
  return Case(
    kind="summary",
    what=f"{path.name}: {changed.what} ({command['command']})",
    damage=replaced(f"data/{path.name}", changed.content),
    names=names,
    **command,
  )


@st.composite
def metrics(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged metrics.jsonl."""
  content = (original / "run" / "metrics.jsonl").read_bytes()
  lines = content.splitlines(keepends=True)
  if draw(st.booleans()):
    number = draw(st.integers(0, len(lines) - 1))
    changed = draw(mutations.of_json(json.loads(lines[number]), prefer=("step", "train/loss")))
    one = json.dumps(json.loads(changed.content)).encode() if changed.plausible else changed.content
    lines[number] = one.replace(b"\n", b" ") + b"\n"
    content = b"".join(lines)
  else:
    changed = draw(mutations.of_bytes(content))
    content = changed.content
  command = _one_of(draw, "resumed", "collect")
  return Case(
    kind="metrics",
    what=f"metrics.jsonl: {changed.what} ({command['command']})",
    damage=replaced("run/metrics.jsonl", content),
    names=("metrics.jsonl",),
    **command | {"right": fine},
  )


@st.composite
def checkpoint(draw: st.DrawFn, original: Path) -> Case:
  """Draws damage to the newest checkpoint of a run: to a file, or to the folder as a whole."""
  newest = original / "run" / "checkpoints" / str(originals.STEPS)
  files = sorted(str(path.relative_to(newest)) for path in newest.rglob("*") if path.is_file())
  action = draw(
    st.sampled_from(
      ["bytes", "bytes", "bytes", "manifest", "manifest", "delete", "swap steps", "rename", "empty",
       "extra", "link"]
    )
  )  # fmt: skip
  name = draw(st.sampled_from(files))
  changed = draw(mutations.of_bytes((newest / name).read_bytes()))
  manifest = json.loads((newest / "manifest.json").read_text())
  edited = draw(mutations.of_json(manifest, prefer=("files", "facts", "sha256")))
  inside = f"run/checkpoints/{originals.STEPS}"

  def damage(place: Place) -> None:
    folder = place.path(inside)
    match action:
      case "bytes":
        (folder / name).write_bytes(changed.content)
      case "manifest":
        (folder / "manifest.json").write_bytes(edited.content)
      case "delete":
        (folder / name).unlink()
      case "swap steps":
        earlier = folder.with_name("2")
        folder.rename(folder.with_name("swap"))
        earlier.rename(folder)
        folder.with_name("swap").rename(earlier)
      case "rename":
        folder.rename(folder.with_name("999"))
      case "empty":
        shutil.rmtree(folder)
        folder.mkdir()
      case "extra":
        (folder / "params" / "extra").write_bytes(b"x")
      case _:
        (folder / name).unlink()
        (folder / name).symlink_to(place.outside / "kept.txt")

  what = {"bytes": f"{name}: {changed.what}", "manifest": f"manifest.json: {edited.what}",
          "delete": f"delete {name}", "link": f"link at {name}"}  # fmt: skip
  command = _one_of(draw, "export", "generate", "resumed")
  return Case(
    kind="checkpoint",
    what=f"checkpoint: {what.get(action, action)} ({command['command']})",
    damage=damage,
    names=("checkpoint", "run"),
    **command,
  )


_PLACES = {
  "run/run.json": ("export", "generate", "resumed"),
  "run/tokenizer.json": ("export", "generate", "resumed"),
  "run/metrics.jsonl": ("resumed",),
  "run/.lock": ("resumed",),
  "run/checkpoints": ("export", "resumed"),
  f"run/checkpoints/{originals.STEPS}/manifest.json": ("export", "resumed"),
  "data/.lock": ("generate", "resumed"),
  "hf/config.json": ("cuts",),
  "hf/tokenizer.json": ("cuts",),
  "hf/model.safetensors.index.json": ("cuts",),
  "hf/generation_config.json": ("cuts",),
  "text/0.txt": ("cuts", "build"),
  "text": ("cuts", "build"),
}


@st.composite
def no_file(draw: st.DrawFn, original: Path) -> Case:
  """Draws a pipe, a link, a device, a socket or a folder where a command expects a file."""
  path = draw(st.sampled_from(sorted(_PLACES)))
  kind = draw(
    st.sampled_from(["pipe", "link", "loop", "device", "folder", "unreadable", "dangling"])
  )
  name = draw(st.sampled_from(_PLACES[path]))

  def damage(place: Place) -> None:
    target = place.path(path)
    if target.is_dir() and not target.is_symlink():
      shutil.rmtree(target)
    else:
      target.unlink(missing_ok=True)
    match kind:
      case "pipe":
        os.mkfifo(target)
      case "link":
        target.symlink_to(place.outside / "kept.txt")
      case "loop":
        target.symlink_to(target.name)
      case "device":
        target.symlink_to("/dev/zero")
      case "folder":
        target.mkdir()
      case "unreadable":
        target.write_bytes(b"\xff\xfe")
        target.chmod(0)
      case _:
        target.symlink_to(place.outside / "new.txt")

  if name in ("cuts", "build"):
    command = {
      "cuts": "intervene",
      "build": "build_dataset",
    }[name]
    arguments = {"cuts": originals.INTERVENE, "build": originals.BUILD}[name]
    right = fine if "generation" in path or path.startswith("text") else same(name)
    command = {"command": command, "arguments": arguments, "right": right}
  else:
    command = _one_of(draw, name)
    if path.endswith((".lock", "metrics.jsonl")):
      command["right"] = fine
  return Case(
    kind="file_kind",
    what=f"{kind} at {path} ({command['command']})",
    damage=damage,
    names=(Path(path).name, path.split("/")[0]),
    **command,
  )
