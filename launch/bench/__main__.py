"""Runs one benchmark: `resjax bench WHAT [FLAGS]`; `WHAT --help` names its flags."""

import functools
import runpy
import sys
from collections.abc import Sequence

from resjax.cli import command, help_text

BENCHMARKS = {
  "kernels": "device time of the depth-attention kernels; bytes and schedules of compiled ones",
  "step": "time of a dense training step of several combinators, in turn",
  "gpu_day": "what needs a GPU, in minutes: are kernels right and fast, steps, peers, a profile",
  "decode": "what a decoded token costs: time here, or bytes on an absent TPU",
  "start": "seconds to the first step of a run, and of an analysis, of whole processes",
  "train": "MFU and input wait of a run on a GPU; a killed run must end in the same bits",
  "prefill": "time and memory of a prompt's prefill; transformers with SDPA beside it",
  "score": "tokens per second of the scorer of evaluations, a plain forward pass beside it",
  "analyze": "time of an analysis, a loop of its matrix products beside it",
  "together": "runs in one program against the same runs one by one",
  "systems": "parameters, state, FLOPs and memory traffic of every residual system",
  "exported": "first and next token of exported models in transformers, beside Llama's",
  "serve": "greedy tokens of exported folders in vLLM on the CPU, beside those of resjax",
  "compile": "compile time and memory of the training step",
  "growth": "how cost grows with text, rows, tokens, layers, parameters and runs",
  "checkpoint": "how long saving a state holds up the caller; restoring; verifying",
}


def main(words: Sequence[str]) -> None:
  """Runs the benchmark that the first word names, or prints which benchmarks there are."""
  what, *rest = words or [""]
  allowed = ", ".join(BENCHMARKS)
  if what in ("-h", "-help", "--help"):
    lines = [f"  {name:13}{text}" for name, text in BENCHMARKS.items()]
    print("usage: resjax bench WHAT [FLAGS]", "", help_text.fitted("\n".join(lines)), sep="\n")
  elif not what:
    raise ValueError(f"one word says what to measure, of: {allowed}; --help explains them")
  elif what not in BENCHMARKS:
    raise ValueError(f"{what!r} is not a benchmark; allowed: {allowed}")
  else:
    sys.argv = [f"launch.bench.{what}", *rest]
    runpy.run_module(f"launch.bench.{what}", run_name="__main__", alter_sys=True)


run = functools.partial(command.run_words, main)

if __name__ == "__main__":
  run()
