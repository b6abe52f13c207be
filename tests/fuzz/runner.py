"""Runs cases one after another, each in a fresh copy of the valid files."""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.fuzz import cases, forks, originals
from tests.fuzz.cases import Case, Place, Verdict
from tests.fuzz.forks import Done

_MOST_SECONDS = 60.0
_MOST_BYTES = 1 << 30  # above what the largest of the valid commands needs


@dataclasses.dataclass(frozen=True)
class Judged:
  """A case, how its command ended, and the verdict."""

  case: Case
  done: Done
  verdict: Verdict


class Runner:
  """Runs cases; a context that makes the valid files and removes all at the end.

  Attributes:
    original: the folder of the valid files.

  The place of every case has the same path, since a run remembers where its data lie.
  """

  def __enter__(self) -> Self:
    self._base = Path(tempfile.mkdtemp(prefix="resjax-fuzz-")).resolve()
    try:
      self._make()
    except BaseException:
      shutil.rmtree(self._base)
      raise
    return self

  def __exit__(self, *_: object) -> None:
    shutil.rmtree(self._base, ignore_errors=True)

  def run(self, case: Case) -> Judged:
    """Returns the verdict of a case."""
    originals.copy(self.original, self._place.folder)
    case.damage(self._place)
    before = self._snapshots(case)
    done = self._run(case.command, case.arguments, case.environment)
    changed = [
      line
      for old, new in zip(before, self._snapshots(case), strict=True)
      for line in cases.differences(old, new)
    ]
    usual = self._usual.get(case.command, self._least)
    verdict = cases.judge(case, self._place, done, changed, usual)
    self._thaw()
    return Judged(case, done, verdict)

  def _snapshots(self, case: Case) -> list[dict[str, tuple]]:
    inside = cases.snapshot(self._place.folder, case.writes)
    return [inside, cases.snapshot(self._place.outside)]

  def _make(self) -> None:
    """Makes the valid files by the commands themselves, and notes their results and memory."""
    for name in ("programs", "logs", "home"):
      (self._base / name).mkdir()
    os.environ["HOME"] = str(self._base / "home")
    os.environ.pop("XDG_CACHE_HOME", None)
    forks.prepare(self._base / "programs")
    place, original = self._base / "place", self._base / "original"
    expected: dict[str, bytes] = {}
    self.original, self._place = original, Place(place, self._base / "victim", expected)
    originals.write_victim(self._place.outside)
    originals.write(place)
    self._least, self._usual = 0, {}
    self._valid("train", originals.training())
    self._valid("sweep", originals.PLANNED)
    self._valid("depth_retrieval", originals.RETRIEVAL)
    originals.write_ladder(place)
    self._valid("ladder", originals.LADDER)
    place.rename(original)
    results: list[tuple[str, str, tuple[str, ...], Callable[[Done], bytes]]] = [
      ("export", "export", originals.EXPORT, lambda _: originals.exported(place)),
      ("generate", "generate", originals.GENERATE, lambda done: done.out),
      ("cuts", "intervene", originals.INTERVENE, lambda _: originals.cuts(place)),
      ("collect", "sweep", originals.COLLECT, lambda done: done.out),
      ("pass", "train", originals.PASS, lambda _: originals.losses(place, "out")),
      ("resumed", "train", originals.training(train__steps=6),
       lambda _: originals.losses(place, "run")),
      ("built", "build_dataset", originals.BUILD, lambda done: done.out),
    ]  # fmt: skip
    for name, command, arguments, result in results:
      originals.copy(original, place)
      expected[name] = result(self._valid(command, arguments))
      if name == "cuts":
        (original / "cuts.json").write_bytes(expected[name])
    self._least = max(self._usual.values())

  def _valid(self, command: str, arguments: tuple[str, ...]) -> Done:
    done = self._run(command, arguments, {})
    if done.code != 0:
      raise RuntimeError(f"{command} failed for valid files: {done.err.decode()}")
    self._usual[command] = max(done.peak, self._usual.get(command, 0))
    return done

  def _run(self, command: str, arguments: tuple[str, ...], environment: dict[str, str]) -> Done:
    words = {"{victim}": str(self._place.outside), "{place}": str(self._place.folder)}
    filled = list(arguments)
    for word, path in words.items():
      filled = [argument.replace(word, path) for argument in filled]
    most = (self._least or 1 << 31) + _MOST_BYTES
    logs = self._base / "logs"
    return forks.run(command, filled, self._place.folder, logs, environment, _MOST_SECONDS, most)

  def _thaw(self) -> None:
    """Gives back the rights that a case took away, so that its files can be removed."""
    for root, folders, _ in os.walk(self._place.folder):
      for name in folders:
        path = os.path.join(root, name)
        if not os.path.islink(path):
          os.chmod(path, 0o755)
