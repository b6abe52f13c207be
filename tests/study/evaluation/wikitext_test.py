"""Pages of WikiText: as lm-evaluation-harness prepares them, and from lines to pages."""

import re

import numpy as np
import pytest

from resjax.study.evaluation import wikitext

PARTS = [
  "word", "N", "two", "'s", "'", '"', "(", ")", "[", "]", "{", "}", "@-@", "@,@", "@.@", ":", ";",
  ".", "!", "?", ",", "=", "= =", "= = =", "= = = =", "°", "\n", " \n", "s '", "/' 5/", "é", "\t",
  "\u00a0", "\u2003", " N ", "\n ", "''",
]  # fmt: skip


def synthetic_pages(count):
  draw = np.random.default_rng(0)
  for _ in range(count):
    words = draw.choice(PARTS, int(draw.integers(1, 120)))
    gaps = draw.choice([" ", " ", " ", "", "  "], len(words))
    yield "".join(word + gap for word, gap in zip(words, gaps, strict=True))


@pytest.mark.parametrize(
  ("page", "expected"),
  [
    (" = A = \n \n the boys ' best ( of 3 @,@ 000 ) .", " = A =\n\nthe boys' best (of 3,000) ."),
    ('he said " yes " , and " no " .', 'he said "yes", and "no" .'),
    ("N of N = = = x", "N of 1 === x"),  # at the beginning, N stays
    ("x /' 5/ y /'/", "x /'[0-9]/ y /'/"),  # the pattern is put there as it is written
    ("{ a { b } } 3 ° C", "{a { b} } 3°C"),
  ],
)
def test_some_rules_by_hand(page, expected):
  assert wikitext.detokenise(page) == expected


def test_brackets_that_do_not_close_take_no_time():
  page = "(" * 200_000 + '"' + " " * 200_000
  assert wikitext.detokenise(page) == page


def test_words_are_counted_with_the_empty_ones_at_both_ends():
  assert [wikitext.count_words(t) for t in ("a b", " a b ", "", " \n\t")] == [2, 4, 1, 2]


def test_equal_to_the_harness_on_200_pages():
  harness = pytest.importorskip("lm_eval.tasks.wikitext.preprocess_wikitext")
  for page in synthetic_pages(200):
    assert wikitext.detokenise(page) == harness.wikitext_detokenizer({"page": page})
    results = harness.process_results({"page": page}, (-1.0,))
    assert results["word_perplexity"][1] == wikitext.count_words(page)
    assert results["word_perplexity"][1] == len(re.split(r"\s+", page))


def test_lines_become_pages():
  rows = ["", " = One = \n", "", " text one . \n", " = = Part = = \n", "", " = Two = \n", " b \n"]
  assert list(wikitext.pages(rows)) == [
    " = One = \n \n text one . \n = = Part = = \n ",
    " = Two = \n b ",
  ]
  assert list(wikitext.pages(["no title \n"])) == ["no title "]
  assert list(wikitext.pages(["", " \n"])) == []
