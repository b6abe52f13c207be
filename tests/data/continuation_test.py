"""The text of a continuation is that of the whole without that of the prompt; stops by spelling."""

import pytest

from resjax.data.continuation import stop_tokens, text_behind
from resjax.data.pretrained_tokenizer import load_pretrained
from resjax.data.synthetic.alphabet import SyntheticTokenizer
from resjax.data.tokenizer import END_OF_TEXT, ByteTokenizer
from tests.helpers import tokenizer_kinds

# Kinds whose texts come back as they were, and those that lower letters or leave some out.
PLAIN = "bpe", "qwen", "llama3", "llama2", "gemma", "byte_fallback", "nfkc", "smollm"
LOSSY = "unigram", "wordpiece"


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
  place = tmp_path_factory.mktemp("kinds")
  names = (*PLAIN, *LOSSY)
  return {name: load_pretrained(tokenizer_kinds.folder(place, name)) for name in names}


def split(words, prompt, rest):
  """Returns the tokens of a prompt, and those that go on with it."""
  before, whole = (ids.tolist() for ids in words.encode_batch([prompt, prompt + rest]))
  assert whole[: len(before)] == before
  return before, whole[len(before) :]


@pytest.mark.parametrize("name", PLAIN)
def test_a_space_in_front_stays(kinds, name):
  words = kinds[name]
  for rest in (" the end", " the", "  the", "é", " é", "e\n"):
    before, tokens = split(words, "end", rest)
    assert text_behind(words.decode, before, tokens) == rest


@pytest.mark.parametrize("name", LOSSY)
def test_words_stay_apart(kinds, name):
  words = kinds[name]
  assert text_behind(words.decode, *split(words, "the end", " the end")) == " the end"
  assert text_behind(words.decode, [], words.encode_batch(["the end"])[0].tolist()) == "the end"


def test_parts_of_a_word_are_joined(kinds):
  words = kinds["wordpiece"]
  prompt, tokens = words.encode_batch(["the"])[0].tolist(), [words.model.token_to_id("##s")]
  assert words.decode(tokens) == "##s"
  assert text_behind(words.decode, prompt, tokens) == "s"


@pytest.mark.parametrize("name", PLAIN)
def test_a_character_that_is_not_whole(kinds, name):
  words = kinds[name]
  for prompt in ("the", "é"):
    before, tokens = split(words, prompt, "e日")
    for count in range(1, len(tokens)):  # of its three bytes one or two
      got = text_behind(words.decode, before, tokens[:count])
      assert got.rstrip("\N{REPLACEMENT CHARACTER}") == "e" and len(got) <= 3


def test_a_byte_that_undoes_the_characters_before_it(kinds):
  words = kinds["llama2"]
  before, tokens = words.encode_batch(["é"])[0].tolist(), [words.model.token_to_id("<0xC3>")]
  assert "é" not in words.decode([*before, *tokens])
  assert text_behind(words.decode, before, tokens) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("name", ["llama2", "byte_fallback"])
@pytest.mark.parametrize("prompt", ["é", "the é"])
@pytest.mark.parametrize("stray", [["<0xE2>"], ["<0xE2>", "<0x82>"]])
@pytest.mark.parametrize("between", ["", "日", "日本"])
@pytest.mark.parametrize("tail", ["", " e", " the end the end"])
def test_stray_bytes_leave_what_stands_around_them(kinds, name, prompt, stray, between, tail):
  words = kinds[name]
  whole = words.encode_batch([prompt + between])[0].tolist()
  before = words.encode_batch([prompt])[0].tolist()
  assert whole[: len(before)] == before
  tokens = [*whole[len(before) :], *map(words.model.token_to_id, stray)]
  tokens += words.encode_batch([tail[1:]])[0].tolist()
  found = text_behind(words.decode, before, tokens)
  assert found == f"{between}\N{REPLACEMENT CHARACTER}{tail}"


def test_decoders_that_change_what_stands_in_front():
  def decode(ids):
    return "".join(map(chr, ids)).replace(" .", ".")

  before, tokens = list(map(ord, "a ")), list(map(ord, ". b"))
  assert text_behind(decode, before, tokens) == ". b"


@pytest.mark.parametrize(
  ("name", "stop", "tokens"),
  [
    ("smollm", "<|im_end|>", (2,)),
    ("smollm", END_OF_TEXT, (1, 0)),  # what separates documents, and the token of this spelling
    ("bpe_unflagged", "<|end|>", (259,)),
    ("qwen", "<|im_start|>", (259,)),
    ("gemma", "<end_of_turn>", (4,)),
    ("llama2", "</s>", (2,)),
    ("llama2", "e", (104, 264)),  # as a byte and inside of words, where `encode` has two tokens
    ("llama2", "the", (287, 288)),  # inside of words, and at the beginning of one
    ("llama2", "\n", (13,)),  # which `encode` puts a space in front of
    ("llama2", " the", (288,)),
    ("bpe", "the", (257,)),
    ("bpe", "\n", (198,)),
    ("wordpiece", "the", (56,)),
  ],
)
def test_stops(tmp_path, name, stop, tokens):
  words = load_pretrained(tokenizer_kinds.folder(tmp_path, name))
  assert stop_tokens(words, stop) == tokens


def test_the_token_of_unknown_words_is_no_stop(tmp_path):
  words = load_pretrained(tokenizer_kinds.folder(tmp_path, "wordpiece"))
  assert words.encode_batch(["."])[0].tolist() == [1]
  with pytest.raises(ValueError, match=r"stop='.' is the token of '\[UNK\]'; it must be one"):
    stop_tokens(words, ".")


def test_stops_of_a_task():
  words = SyntheticTokenizer("synthetic:copy")
  assert stop_tokens(words, END_OF_TEXT) == (words.eot_id,)
  assert stop_tokens(words, words.piece(3).decode()) == (3,)
  with pytest.raises(ValueError, match="' ' is no symbol of synthetic:copy; allowed: ! to A"):
    stop_tokens(words, " ")


def test_stops_of_bytes():
  assert stop_tokens(ByteTokenizer(), END_OF_TEXT) == (256,)
  assert stop_tokens(ByteTokenizer(), "e") == (ord("e"),)
  for stop in ("", "é", "<|im_end|>"):
    with pytest.raises(ValueError, match=r"is \d+ tokens; it must be one, special or not") as error:
      stop_tokens(ByteTokenizer(), stop)
    assert "\n" not in str(error.value)
