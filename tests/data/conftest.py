import random

import pytest

from resjax.data.config import DataConfig, TokenizerConfig

WORDS = ["tree", "river", "naïve", "façade", "日本", "the", "of", "😀", "x=1", "12345", "\t\n"]


def make_texts(count, seed=0, words=40):
  """Returns documents that differ from each other, of 1 to `words` words each."""
  rng = random.Random(seed)
  texts = []
  for index in range(count):
    length = rng.randint(1, words)
    texts.append(f"{seed}.{index} " + " ".join(rng.choices(WORDS, k=length)))
  return texts


def write_folder(folder, texts):
  folder.mkdir(parents=True, exist_ok=True)
  for index, text in enumerate(texts):
    (folder / f"{index:04}.txt").write_text(text, encoding="utf-8", newline="")
  return folder


@pytest.fixture
def folder_config(tmp_path):
  """Returns a function that writes texts into a folder per corpus and makes their config."""

  def make(texts_by_name, weights=None, tokenizer="byte", vocab_size=300, **changes):
    corpora = {}
    for name, texts in texts_by_name.items():
      source = write_folder(tmp_path / "text" / name, texts)
      corpora[name] = {"source": str(source), "weight": (weights or {}).get(name, 1.0)}
    values = {"root": str(tmp_path / "root"), "seq_len": 16, "corpora": corpora}
    values |= {"validation_fraction": 0.1, "test_fraction": 0.1}
    settings = TokenizerConfig(tokenizer, vocab_size, 10_000)
    return DataConfig(**(values | {"tokenizer": settings} | changes))

  return make
