"""Documents and answers of synthetic tasks, against loops over Python lists."""

import numpy as np
import pytest

from resjax.data.synthetic import tasks
from resjax.data.synthetic.alphabet import SyntheticTokenizer

SOURCES = {
  "mqar": "synthetic:mqar?pairs=5&keys=9&values=4&filler=7&length=30",
  "s3": "synthetic:s3?length=9",
  "s5": "synthetic:s5?length=7",
  "parity": "synthetic:parity?length=40",
  "copy": "synthetic:copy?length=10&symbols=6",
  "hops": "synthetic:hops?elements=6&hops=3&length=30",
}


def mqar(document):
  table, answers = {}, []
  for t, symbol in enumerate(document):
    if t < 10:
      if t % 2:
        table[document[t - 1]] = (symbol, t // 2)
      answers.append((-1, -1))
    else:
      answers.append(table.get(symbol, (-1, -1)))
  return answers


def group(size):
  """Permutations act on a tuple: the product applies the newest one first."""
  numbers = np.array(np.meshgrid(*[range(size)] * size, indexing="ij")).reshape(size, -1).T
  members = [tuple(row) for row in numbers.tolist() if len(set(row)) == size]

  def answers(document):
    state, found = list(range(size)), []
    for t, symbol in enumerate(document):
      state = [state[members[symbol][i]] for i in range(size)]
      found.append((members.index(tuple(state)), t))
    return found

  return answers


def parity(document):
  return [(sum(document[: t + 1]) % 2, t * 16 // 40) for t in range(len(document))]


def copy(document):
  return [(-1, -1)] * 5 + [(document[i], i) for i in range(5)]


def hops(document):
  image = {document[2 * i]: document[2 * i + 1] for i in range(6)}
  answers = [(-1, -1)] * 12
  for t in range(12, len(document), 2):
    element, count = document[t + 1], document[t] - 5
    for _ in range(count):
      element = image[element]
    answers += [(-1, -1), (element, count - 1)]
  return answers


BY_HAND = {
  "mqar": mqar,
  "s3": group(3),
  "s5": group(5),
  "parity": parity,
  "copy": copy,
  "hops": hops,
}


@pytest.mark.parametrize("name", SOURCES)
def test_answers_are_those_of_a_loop(name):
  task = tasks.parse(SOURCES[name])
  documents = np.stack([task.document(index) for index in range(50)])
  answers, levels = task.answers(documents)
  for row, document in enumerate(documents.tolist()):
    expected = BY_HAND[name](document)
    assert list(zip(answers[row].tolist(), levels[row].tolist(), strict=True)) == expected
  assert documents.min() >= 0 and max(documents.max(), answers.max()) < task.num_symbols
  assert set(levels[levels >= 0].tolist()) == set(range(task.num_levels))


def test_documents_of_recall_and_of_hops_are_as_they_are_described():
  task = tasks.parse(SOURCES["mqar"])
  documents = np.stack([task.document(index) for index in range(200)])
  for document in documents:
    assert len(set(document[:10:2])) == 5 and sorted(document[:10:2]) == sorted(
      document[10:][document[10:] < 9]
    )
  places = np.nonzero(documents[:, 10:] < 9)[1]
  assert set(places) == set(range(20))  # queries stand anywhere
  task = tasks.parse(SOURCES["hops"])
  for document in map(task.document, range(50)):
    image = dict(zip(document[:12:2].tolist(), document[1:12:2].tolist(), strict=True))
    element, seen = 0, []
    for _ in range(6):
      element = image[element]
      seen.append(element)
    assert sorted(seen) == list(range(6))  # one cycle


@pytest.mark.parametrize("name", SOURCES)
def test_a_document_depends_on_seed_and_index_alone(name):
  task, other = tasks.parse(SOURCES[name]), tasks.parse(f"{SOURCES[name]}&seed=1")
  late = task.document(70_000)
  np.testing.assert_array_equal(late, tasks.parse(SOURCES[name]).document(70_000))
  first = np.stack([task.document(index) for index in range(8)])
  assert (first != np.stack([other.document(index) for index in range(8)])).any()
  assert len(np.unique(first, axis=0)) == 8


@pytest.mark.parametrize("name", SOURCES)
def test_chance_is_what_guessing_gives(name):
  task = tasks.parse(SOURCES[name])
  documents = np.stack([task.document(index) for index in range(2000)])
  answers, _ = task.answers(documents)
  if name == "hops":  # a guess that is not the element itself
    asked = documents[:, 13::2]
    guess, right = (asked + 1) % 6, answers[:, 13::2]
  else:
    right = answers[answers >= 0]
    guess = np.bincount(right).argmax()
  assert abs(np.mean(guess == right) - task.chance) < 0.03


@pytest.mark.parametrize("name", SOURCES)
def test_tokens_are_symbols_and_survive_text(name, tmp_path):
  from resjax.data import tokenizer

  made = SyntheticTokenizer(SOURCES[name])
  made.save(tmp_path / "tokenizer.json")
  words = tokenizer.load(tmp_path / "tokenizer.json")
  documents = [made.task.document(index) for index in range(5)]
  texts = [made.spell(document) for document in documents]
  assert not any(c.isspace() for text in texts for c in text)
  for document, tokens in zip(documents, words.encode_batch(texts), strict=True):
    np.testing.assert_array_equal(document, tokens)
    assert words.decode(tokens) == made.spell(document)
  sizes = [len(words.piece(token)) for token in range(words.eot_id)]
  assert words.token_bytes().tolist() == [*sizes, 0] and words.vocab_size == len(sizes) + 1
  with pytest.raises(ValueError, match=r"' ' is no symbol of synthetic:"):
    words.encode_batch([" "])


@pytest.mark.parametrize(
  ("source", "words"),
  [
    ("synthetic:sort", "is no synthetic task; allowed: mqar, s3, s5, parity, copy, hops"),
    ("synthetic:s3?elements=4", "'elements' is no setting of s3; allowed: length, count, seed"),
    ("synthetic:mqar?pairs=x", "pairs=x must be a whole number"),
    ("synthetic:mqar?pairs=65", "pairs=65 is out of range; allowed: at most keys=64"),
    ("synthetic:mqar?pairs=8&length=20", "length=20 is out of range; allowed: at least 3 pairs"),
    ("synthetic:copy?length=7", "length=7 is out of range; allowed: even"),
    ("synthetic:hops?hops=8", "hops=8 is out of range; allowed: below elements=8"),
    ("synthetic:copy?symbols=9999", "10000 symbols is out of range; allowed: at most 4096"),
    ("synthetic:s3?count=0", "count=0 is out of range; allowed: 1.."),
  ],
)
def test_mistakes(source, words):
  with pytest.raises(ValueError) as error:
    tasks.parse(source)
  assert words in str(error.value) and str(error.value).startswith(repr(source))
