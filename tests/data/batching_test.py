"""Lists of texts end where their sizes or their number say so."""

from resjax.data.batching import batched


def test_lists_end_as_soon_as_they_are_large_enough():
  texts = ["a", "bb", "", "cccc", "d"]
  assert list(batched(texts, len, 3)) == [["a", "bb"], ["", "cccc"], ["d"]]
  assert list(batched(texts, len, 3, most=1)) == [[text] for text in texts]


def test_no_list_is_empty():
  assert list(batched([], len, 3)) == []
  assert list(batched(["abc"], len, 3)) == [["abc"]]


def test_a_list_is_yielded_before_more_items_are_asked_for():
  items = iter("abcd")
  assert next(batched(items, len, 2)) == ["a", "b"]
  assert next(items) == "c"
