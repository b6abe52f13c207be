"""Small Hugging Face folders: the golden models, with a tokenizer that reads tests/helpers/runs."""

import pathlib
import shutil
import string

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "huggingface"
V, VOCAB_SIZE = 61, 50  # rows of the embeddings, tokens


def folder(place: pathlib.Path, family: str = "llama") -> pathlib.Path:
  """Copies a golden model to place/family and gives it a tokenizer."""
  made = shutil.copytree(GOLDEN / family, place / family)
  tokenizer().save(str(made / "tokenizer.json"))
  return made


def tokenizer(vocab_size: int = VOCAB_SIZE) -> tokenizers.Tokenizer:
  """A BPE of words with a space before them, as SentencePiece has it; <s> is 0."""
  made = tokenizers.Tokenizer(models.BPE(byte_fallback=False))
  made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=["<s>", "</s>"],
    initial_alphabet=sorted("\u2581" + string.ascii_lowercase),
    show_progress=False,
  )
  made.train_from_iterator(["depth width layer token source stream query gate norm"] * 3, trainer)
  made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
  return made
