"""What a corpus is, by its documents, and where two differ."""

import dataclasses
import json

import pytest

from resjax.base import typed_json
from resjax.data import text_digest
from resjax.data.text_digest import TextDigest, TextHasher


def digest(texts):
  hasher = TextHasher()
  for text in texts:
    hasher.add(text)
  return hasher.digest()


TEXTS = [f"document {number}" for number in range(50)]


@pytest.fixture(params=[1 << 16, 8], ids=["whole", "in blocks"])
def blocks(request, monkeypatch):
  monkeypatch.setattr(text_digest, "MOST_BLOCKS", request.param)
  return request.param


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 50])
def test_root_does_not_depend_on_how_much_is_kept(monkeypatch, count):
  whole = digest(TEXTS[:count])
  monkeypatch.setattr(text_digest, "MOST_BLOCKS", 4)
  short = digest(TEXTS[:count])
  assert short.root == whole.root and len(short.blocks) <= 5 * 32
  assert whole.is_whole and short.is_whole
  assert whole.first_difference(short) is None


def test_every_change_of_a_text_is_another_root(blocks):
  first = digest(TEXTS)
  changed = [[*TEXTS[:i], TEXTS[i] + "!", *TEXTS[i + 1 :]] for i in range(50)]
  others = [TEXTS[:-1], [*TEXTS, ""], [*TEXTS, None], TEXTS[::-1], TEXTS[1:]]
  assert len({digest(texts).root for texts in [TEXTS, *changed, *others]}) == 56
  for index, texts in enumerate(changed):
    start, stop = digest(texts).first_difference(first)
    assert start <= index < stop and stop - start == (1 if blocks > 50 else 8)


def test_longer_and_shorter_corpora_differ_at_the_end(blocks):
  first = digest(TEXTS)
  for texts in (TEXTS[:48], [*TEXTS, "more"]):
    start, stop = digest(texts).first_difference(first)
    assert start <= min(len(texts), 50) < stop
    assert digest(texts).num_differences(first) is None


def test_differences_are_counted():
  other = ["x", *TEXTS[1:40], "y", *TEXTS[41:]]
  assert digest(other).num_differences(digest(TEXTS)) == 2


def test_a_damaged_record_is_noticed():
  found = digest(TEXTS)

  def is_good(change):
    text = json.dumps(dataclasses.asdict(found) | change)
    try:
      return typed_json.parse(text, TextDigest, "here").is_whole
    except ValueError as error:
      assert str(error).startswith("here") and "\n" not in str(error)
      return False

  assert is_good({})
  other = "0" if found.blocks[40] != "0" else "1"
  for change in (
    {"blocks": found.blocks[:40] + other + found.blocks[41:]},
    {"blocks": found.blocks[:-1]},
    {"blocks": found.blocks[:-32]},
    {"documents": 49},
    {"level": 1},
    {"level": 63},
    {"documents": -1},
    {"blocks": "xy"},
    {"root": "0" * 32},
  ):
    assert not is_good(change), change
