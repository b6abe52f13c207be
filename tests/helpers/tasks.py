"""A small task of every kind in lm-evaluation-harness's format, with its documents beside it."""

import json
import pathlib
import random

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from resjax.data.pretrained_tokenizer import MAIN, PretrainedTokenizer

WORDS = ["depth", "width", "layer", "token", "source", "stream", "query", "gate", "norm"]
NAMES = ("choice", "roll", "last_word", "continue")
CHAT = (
  "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
  "{{ bos_token if loop.first }}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
  "{% if add_generation_prompt %}model: {% endif %}"
)

_SETTINGS = {
  "choice": {
    "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_target": "{{gold}}",
    "doc_to_choice": "{{choices}}", "target_delimiter": " ", "num_fewshot": 2,
    "fewshot_split": "train", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
  },
  "roll": {
    "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
    "metric_list": [{"metric": m} for m in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
  },
  "last_word": {
    "output_type": "loglikelihood", "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
    "doc_to_target": "{{' ' + text.split(' ')[-1]}}",
    "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
  },
  "continue": {
    "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "gate",
    "generation_kwargs": {"until": ["\n", "th qu", "wi"], "max_gen_toks": 20},
    "metric_list": [{"metric": "exact_match"}],
  },
}  # fmt: skip


def tokenizer(bos: bool, rows: int = 61) -> PretrainedTokenizer:
  """One that begins texts with <s>, words as SentencePiece has them; or byte-level without that."""
  made = tokenizers.Tokenizer(models.BPE())
  if bos:
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    letters = "\u2581abcdefghijklmnopqrstuvwxyz.:\n"
  else:
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    letters = "\u0120\u010aabcdefghijklmnopqrstuvwxyz.:"
  trainer = trainers.BpeTrainer(
    vocab_size=rows - 1, special_tokens=["<s>", "</s>"], initial_alphabet=sorted(letters),
    show_progress=False,
  )  # fmt: skip
  made.train_from_iterator([" ".join(WORDS)] * 3, trainer)
  settings: dict = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
  settings |= {"clean_up_tokenization_spaces": False, "chat_template": CHAT}
  if bos:
    made.post_processor = processors.TemplateProcessing(
      single="<s> $A", special_tokens=[("<s>", 0)]
    )
    settings["bos_token"] = "<s>"
  files = {MAIN: made.to_str(), "tokenizer_config.json": json.dumps(settings)}
  return PretrainedTokenizer(files, rows, {"bos_token_id": 0, "eos_token_id": 1})


def text(rng: random.Random, words: int) -> str:
  """Words between single spaces, some of them misspelled."""
  return " ".join(
    word if rng.random() < 0.8 else word[::-1] for word in rng.choices(WORDS, k=words)
  )


def write(folder: pathlib.Path, documents: int = 12) -> pathlib.Path:
  """Writes the tasks, which read no other files, into a folder of their own."""
  folder.mkdir()
  rng = random.Random(0)
  found = {}
  for split in ("train", "test"):
    found[split] = [
      {
        "question": text(rng, rng.randint(1, 6)) + ":",
        "choices": [text(rng, rng.randint(1, 3)) for _ in range(3)],
        "gold": rng.randrange(3),
        "text": text(rng, rng.choice([2, 5, 40, 90])),
      }
      for _ in range(documents)
    ]
    lines = "".join(json.dumps(document) + "\n" for document in found[split])
    (folder / f"{split}.jsonl").write_text(lines)
  files = {split: str(folder / f"{split}.jsonl") for split in found}
  for name, settings in _SETTINGS.items():
    common = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": files}}
    task = common | {"test_split": "test", "metadata": {"version": 1.0}} | settings
    (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML, too
  return folder
