"""Text files that are read: broken, cut, deep, of other encodings, with odd names."""

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from hypothesis import strategies as st

from tests.fuzz import mutations, originals
from tests.fuzz.cases import Case, Check, Place, ended_well, must_refuse

_LINES = [json.dumps({"text": f"depth width layer {number} " * 4}) for number in range(12)]
_JSONL = ("\n".join(_LINES) + "\n").encode()
_LAYOUTS = {
  "lines": _JSONL,
  "array": f"[{', '.join(_LINES)}]".encode(),
  "indented array": json.dumps([json.loads(line) for line in _LINES], indent=1).encode(),
  "indented objects": "\n".join(json.dumps(json.loads(one), indent=1) for one in _LINES).encode(),
  "lines of Windows in UTF-16": "\r\n".join(_LINES).encode("utf-16"),
  "object with a list": json.dumps({"data": [json.loads(line) for line in _LINES]}).encode(),
}
_PACKERS = {
  "gz": gzip.compress,
  "bz2": bz2.compress,
  "xz": lzma.compress,
  "zst": lambda content: pyarrow.compress(content, codec="zstd", asbytes=True),
  "lz4": lambda content: pyarrow.compress(content, codec="lz4", asbytes=True),
}
# Those that find any damage; the others were written here without checksums.
_UNPACKERS = {"gz": gzip.decompress, "bz2": bz2.decompress, "xz": lzma.decompress}
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
  forms = ["txt", "jsonl", "json", "packed", "parquet", "parquet", "name", "other name"]
  form = draw(st.sampled_from(forms))
  right: Check = ended_well
  name = f"hostile.{form}"
  match form:
    case "txt":
      what = draw(st.sampled_from(sorted(_RAW)))
      content = _RAW[what]
    case "jsonl" | "json":
      content, what, right = draw(_json())
    case "packed":
      ending = draw(st.sampled_from(sorted(_PACKERS)))
      name = f"hostile.jsonl.{ending}"
      content, what, right = draw(_compressed(ending))
      what = f"{ending} {what}"
    case "other name":
      name = draw(st.sampled_from(["hostile", "hostile.txt", "hostile.parquet", "hostile.gz"]))
      content = draw(st.sampled_from([_TABLE, *_LAYOUTS.values()]))
      content = draw(st.sampled_from([bytes, *_PACKERS.values()]))(content)
      what = name
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
  command = draw(
    st.sampled_from(
      [
        *["build_dataset"] * 2,
        "intervene",
        "evaluate",
      ]
    )
  )
  if command == "intervene":
    arguments = (*originals.INTERVENE, f"--data={source}", f"--data_format={encoding}")
  elif command == "evaluate":
    arguments = (*originals.EVALUATE, f"--text=own={source}", f"--data_format={encoding}")
  else:
    prefix = "--config.data.corpora.stdlib"
    arguments = (*originals.BUILD, f"{prefix}.source={source}", f"{prefix}.format={encoding}")

  def damage(place: Place) -> None:
    place.path(source).mkdir(exist_ok=True)
    place.path(source).joinpath(name).write_bytes(content)

  return Case(
    kind="text",
    command=command,
    arguments=arguments,
    what=f"{form} {what} as {encoding} ({command}{', beside others' if beside else ''})",
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
    command="evaluate",
    arguments=(*originals.EVALUATE, f"--text=own={convention}:hostile.bin"),
    what=f"{convention}: {changed.what}",
    damage=lambda place: place.path("hostile.bin").write_bytes(changed.content) and None,
    names=("hostile.bin",),
  )


@st.composite
def _json(draw: st.DrawFn) -> tuple[bytes, str, Check]:
  if draw(st.booleans()):
    piece = draw(st.sampled_from(_LINE_PIECES))
    at = draw(st.integers(0, len(_LINES)))
    content = "\n".join([*_LINES[:at], piece, *_LINES[at:]]).encode()
    return content, f"line {at + 1} is {piece[:30]}", _if_broken(content)
  layout = draw(st.sampled_from(sorted(_LAYOUTS)))
  changed = draw(mutations.of_bytes(_LAYOUTS[layout]))
  return changed.content, f"{layout}: {changed.what}", _if_broken(changed.content)


def _if_broken(content: bytes) -> Check:
  return must_refuse if _broken(content) else ended_well


def _broken(content: bytes) -> bool:
  """Returns whether something in JSON is no document, so that a reader may not pass over it."""
  try:
    text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8")
    at, found = 0, []
    while text := text[at:].strip("\ufeff \t\r\n"):
      value, at = json.JSONDecoder().raw_decode(text)
      found += value if isinstance(value, list) else [value]
    return not all(isinstance(value["text"], str | None) for value in found)
  except (ValueError, KeyError, TypeError, IndexError, RecursionError):
    return True


@st.composite
def _compressed(draw: st.DrawFn, ending: str) -> tuple[bytes, str, Check]:
  pack = _PACKERS[ending]
  match draw(st.sampled_from(["bytes", "bytes", "large line", "many", "plain"])):
    case "bytes":
      changed = draw(mutations.of_bytes(pack(_JSONL)))
      if ending not in _UNPACKERS:
        return changed.content, changed.what, must_refuse if "cut" in changed.what else ended_well
      try:
        same = _UNPACKERS[ending](changed.content) in (_JSONL, _JSONL * 2)
      except Exception:  # zlib.error is no OSError
        same = False
      return changed.content, changed.what, ended_well if same else must_refuse
    case "large line" if ending == "gz":
      return _bomb(), "one line of 3 GB", ended_well
    case "plain":
      return _JSONL, "not compressed", ended_well
    case _:
      return pack(_JSONL * 20), "many lines", ended_well


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
