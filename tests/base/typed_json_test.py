"""Typed JSON: what fits is returned, what does not fit is named with file, key and value."""

import dataclasses
import json
import os
import time
from typing import Annotated, Any

import msgspec
import pytest

from resjax.base import locations, typed_json


@dataclasses.dataclass(frozen=True)
class _Split:
  rows: Annotated[int, msgspec.Meta(ge=1)]
  names: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Summary:
  splits: dict[str, _Split]
  extra: Any = None


def test_values_that_fit(tmp_path):
  path = tmp_path / "a.json"
  path.write_text('{"splits": {"train": {"rows": 2, "names": ["x"]}}, "unknown": 1}')
  assert typed_json.read(path, _Summary) == _Summary({"train": _Split(2, ["x"])})


@pytest.mark.parametrize(
  ("text", "said"),
  [
    ('{"splits": {"a": {"rows": 1}, "b": {"rows": 0}}}', "splits.b.rows is 0: expected int >= 1"),
    (
      '{"splits": {"a": {"rows": 1}, "b": {"rows": 0}, "c": {"rows": 0}}}',
      "splits.b.rows is 0: expected int >= 1",
    ),
    ('{"splits": {"b": {"rows": "2"}}}', "splits.b.rows is '2': expected int, got str"),
    ('{"splits": {"b": {}}}', "splits.b: object missing required field rows"),
    ('{"splits": {"b": {"rows": 1, "names": ["", 7]}}}', "splits.b.names[1] is 7: expected str"),
    ('{"splits": []}', "splits: expected object, got array"),
    ("[]", "the value: expected object, got array"),
    ('{"splits": {}', "holds no JSON"),
    ("[", "holds no JSON"),
    ('{"splits": 3', "holds no JSON"),
    ('{"splits": {}, "extra": NaN}', "holds no JSON"),
    ('{"splits": {}, "extra": 1e999}', "number out of range"),
    ('{"splits": {}, "extra": "\\ud800"}', "holds no JSON"),
    ('{"splits": {}, "extra": ' + "[" * 100_000, "nested too deeply"),
    ("", "holds no JSON"),
  ],
)
def test_a_misfit_is_named_in_one_line(text, said):
  with pytest.raises(ValueError) as caught:
    typed_json.parse(text, _Summary, "a.json")
  message = str(caught.value)
  assert message.startswith("a.json") and said.lower() in message.lower() and "\n" not in message


def test_dicts_in_dicts_are_named():
  text = '{"a": {"x": 1, "y": -1}, "b": {"x": -1}, "c": {}}'
  kind = dict[str, dict[str, Annotated[int, msgspec.Meta(ge=0)]]]
  with pytest.raises(ValueError, match=r"^here: a\.y is -1: expected int >= 0$"):
    typed_json.parse(text, kind, "here")


def test_one_of_many_keys_is_named_at_once():
  values = {str(number): 1 for number in range(100_000)} | {"last": "x"}
  began = time.perf_counter()
  with pytest.raises(ValueError, match=r"^here: last is 'x': expected int, got str$"):
    typed_json.parse(json.dumps(values), dict[str, int], "here")
  assert time.perf_counter() - began < 10


@pytest.mark.parametrize("text", [b'{"spl\xe4ts": {}}', b'{"splits": {"a\xb0": {}}}', b"\xff"])
def test_bytes_that_are_no_utf8_are_no_json(text):
  with pytest.raises(ValueError, match=r"^a\.json holds no JSON"):
    typed_json.parse(text, _Summary, "a.json")


def test_a_file_is_read_up_to_its_limit(tmp_path):
  path = tmp_path / "a.json"
  path.write_text(json.dumps({"splits": {}, "extra": "x" * 100}))
  with pytest.raises(ValueError, match="larger than 50 bytes"):
    typed_json.read(path, _Summary, most_bytes=50)


def test_a_pipe_is_refused_at_once(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  with pytest.raises(ValueError, match="no regular file"):
    typed_json.read(tmp_path / "pipe", _Summary)


@pytest.mark.parametrize(
  "name", ["", "/etc/passwd", "../a", "a/../../b", "C:\\a", "gs://b/c", "a\0b", 3, None, "out/x"]
)
def test_names_that_leave_a_folder_are_refused(tmp_path, name):
  root = tmp_path / "root"
  root.mkdir()
  (root / "out").symlink_to(tmp_path)
  with pytest.raises(ValueError, match=r"manifest\.json: files"):
    locations.inside(root, name, "manifest.json: files")


@pytest.mark.parametrize("name", ["a", "a/b.json", "./a", "in/x"])
def test_names_that_stay_in_a_folder_are_allowed(tmp_path, name):
  (tmp_path / "in").symlink_to(tmp_path)
  assert locations.inside(tmp_path, name, "manifest") == tmp_path / name


def test_a_lock_neither_follows_a_link_nor_cuts_a_file(tmp_path):
  (tmp_path / "victim").write_text("kept")
  (tmp_path / ".lock").symlink_to(tmp_path / "victim")
  with pytest.raises(OSError):
    locations.open_lock(tmp_path / ".lock")
  locations.open_lock(tmp_path / "victim").close()
  assert (tmp_path / "victim").read_text() == "kept"


def test_a_written_file_replaces_a_link_at_its_temporary_name(tmp_path):
  (tmp_path / "victim").write_text("kept")
  (tmp_path / ".a.json.partial").symlink_to(tmp_path / "victim")
  locations.write_text(tmp_path / "a.json", "new")
  assert (tmp_path / "victim").read_text() == "kept"
  assert (tmp_path / "a.json").read_text() == "new"
