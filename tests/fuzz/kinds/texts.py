"""Text files that are read: broken, cut, deep, of other encodings, with odd names."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from hypothesis import strategies as st

from tests.fuzz import mutations, originals
from tests.fuzz.cases import Case, Check, Place, ended_well, must_refuse

_LINES = [json.dumps({"text": f"depth width layer {number} " * 4}) for number in range(12)]
_JSONL = ("\n".join(_LINES) + "\n").encode()
_NAMES = (
  "a.txt", "é.txt", " .txt", "-.txt", "a\nb.txt", "[red].txt", "$a_{$.txt", "x" * 200 + ".txt",
  "\x1b[31m.txt", "*.txt", "A.TXT", ".hidden.txt", "a.txt.gz", "no_ending",
)  # fmt: skip


def _parquet(column: pyarrow.Array, name: str = "text") -> bytes:
  file = io.BytesIO()
  pyarrow.parquet.write_table(pyarrow.table({name: column}), file)
  return file.getvalue()


_TEXTS = ["depth width layer " * 4] * 12
_TABLE = _parquet(pyarrow.array(_TEXTS))
_LINE_PIECES = (
  "{", "[]", "null", "1", '{"text": 1}', '{"text": null}', '{"other": "x"}', '{"text": "\\ud800"}',
  '{"text": "a", "text": "b"}', '{"text": ["a"]}', "[" * 100_000, '{"text": ' + "[" * 2000 + "}",
  '{"text": "x"', "NaN", '{"text": "x"} {"text": "y"}', "1" * 5000, "", "   ",
  '{"text": "' + "x " * 300_000 + '"}',
)  # fmt: skip
_TABLES = {
  "numbers": _parquet(pyarrow.array([1, 2, 3])),
  "nulls": _parquet(pyarrow.array([None, None], pyarrow.string())),
  "other column": _parquet(pyarrow.array(_TEXTS), "other"),
  "no rows": _parquet(pyarrow.array([], pyarrow.string())),
  "lists": _parquet(pyarrow.array([["a"], ["b"]])),
  "bytes": _parquet(pyarrow.array([b"\xff\xfe", b"a"], pyarrow.binary())),
}
_RAW = {
  "latin-1": "dépth wïdth ".encode("latin-1") * 20,
  "utf-16": ("depth width " * 20).encode("utf-16"),
  "nul": b"depth\0width " * 20,
  "bom": b"\xef\xbb\xbfdepth width " * 20,
  "one byte": b"x",
  "blank": b" \n" * 100,
  "empty": b"",
  "one line": b"depth width " * 200_000,
  "special tokens": b"<|endoftext|><s></s> depth " * 20,
  "controls": bytes(range(1, 32)) * 20,
  "surrogates": b"\xed\xa0\x80 depth " * 20,
  "binary": bytes(range(256)) * 8,
}


@st.composite
def damaged(draw: st.DrawFn, original: Path) -> Case:
  """Draws a file of text and a command that reads it, alone or beside valid files."""
  form = draw(st.sampled_from(["txt", "jsonl", "jsonl", "jsonl.gz", "parquet", "parquet", "name"]))
  right: Check = ended_well
  name = f"hostile.{form}"
  match form:
    case "txt":
      what = draw(st.sampled_from(sorted(_RAW)))
      content = _RAW[what]
    case "jsonl":
      content, what, right = draw(_lines())
    case "jsonl.gz":
      content, what, right = draw(_compressed())
    case "parquet":
      content, what, right = draw(_tables())
    case _:
      name = draw(st.sampled_from(_NAMES))
      content, what = b"depth width layer " * 10, "odd name"
  beside = draw(st.booleans()) and form in ("txt", "name")
  source = "text" if beside else "other"
  encoding = draw(st.sampled_from(["auto", "auto", "jsonl", "parquet", "text"]))
  if encoding != "auto":
    right = ended_well
  module = draw(
    st.sampled_from([*["launch.build_dataset"] * 2, "launch.intervene", "launch.evaluate"])
  )
  if module == "launch.intervene":
    arguments = (*originals.INTERVENE, f"--data={source}", f"--data_format={encoding}")
  elif module == "launch.evaluate":
    arguments = (*originals.EVALUATE, f"--text=own={source}", f"--data_format={encoding}")
  else:
    prefix = "--config.data.corpora.stdlib"
    arguments = (*originals.BUILD, f"{prefix}.source={source}", f"{prefix}.format={encoding}")

  def damage(place: Place) -> None:
    place.path(source).mkdir(exist_ok=True)
    place.path(source).joinpath(name).write_bytes(content)

  return Case(
    kind="text",
    module=module,
    arguments=arguments,
    what=f"{form} {what} as {encoding} ({module}{', beside others' if beside else ''})",
    damage=damage,
    names=(name, source, "source", "field", "text"),
    right=right,
  )


@st.composite
def tokens(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged file of tokens, and the convention by which it is scored."""
  header = np.zeros(256, "<i4")
  header[:3] = 20240520, 1, 120
  written = np.tile(np.arange(40, dtype="<u2"), 3).tobytes()  # 0 is the end of text
  convention = draw(st.sampled_from(["llmc", "nanogpt"]))
  valid = header.tobytes() + written if convention == "llmc" else written
  changed = draw(mutations.of_bytes(valid))
  return Case(
    kind="tokens",
    module="launch.evaluate",
    arguments=(*originals.EVALUATE, f"--text=own={convention}:hostile.bin"),
    what=f"{convention}: {changed.what}",
    damage=lambda place: place.path("hostile.bin").write_bytes(changed.content) and None,
    names=("hostile.bin",),
  )


@st.composite
def _lines(draw: st.DrawFn) -> tuple[bytes, str, Check]:
  if draw(st.booleans()):
    piece = draw(st.sampled_from(_LINE_PIECES))
    at = draw(st.integers(0, len(_LINES)))
    lines = [*_LINES[:at], piece, *_LINES[at:]]
    return "\n".join(lines).encode(), f"line {at + 1} is {piece[:30]}", _if_broken(piece)
  changed = draw(mutations.of_bytes(_JSONL))
  broken = any(_broken(line) for line in changed.content.split(b"\n"))
  return changed.content, changed.what, must_refuse if broken else ended_well


def _if_broken(line: str) -> Check:
  return must_refuse if _broken(line.encode()) else ended_well


def _broken(line: bytes) -> bool:
  """Returns whether a line of JSONL holds no document, so that a reader may not pass over it."""
  try:
    text = line.decode("utf-8")
    return bool(text.strip()) and not isinstance(json.loads(text)["text"], str | None)
  except (ValueError, KeyError, TypeError, RecursionError):
    return True


@st.composite
def _compressed(draw: st.DrawFn) -> tuple[bytes, str, Check]:
  match draw(st.sampled_from(["bytes", "bytes", "large line", "many", "plain"])):
    case "bytes":
      packed = gzip.compress(_JSONL, mtime=0)
      changed = draw(mutations.of_bytes(packed))
      try:
        same = gzip.decompress(changed.content) in (_JSONL, _JSONL * 2)
      except (OSError, EOFError, ValueError, Exception):  # zlib.error is no OSError
        same = False
      return changed.content, changed.what, ended_well if same else must_refuse
    case "large line":
      return _bomb(), "one line of 3 GB", ended_well
    case "many":
      return gzip.compress(_JSONL * 20, mtime=0), "many lines", ended_well
    case _:
      return _JSONL, "not compressed", must_refuse


def _bomb() -> bytes:
  """Returns 3 GB of one line in a few MB: the same compressed member again and again."""
  member = gzip.compress(b"x" * (64 << 20), mtime=0)
  return gzip.compress(b'{"text": "', mtime=0) + member * 48


@st.composite
def _tables(draw: st.DrawFn) -> tuple[bytes, str, Check]:
  if draw(st.booleans()):
    what = draw(st.sampled_from(sorted(_TABLES)))
    return _TABLES[what], what, ended_well
  changed = draw(mutations.of_bytes(_TABLE))
  cut = "cut" in changed.what or "empty" in changed.what
  return changed.content, changed.what, must_refuse if cut else ended_well
