"""Compares all metrics of `resjax analyze` with those of a script in torch, on a pretrained model.

  python docs/findings/lens_in_torch.py OUT.json TEXT FOLDER [FOLDER ...]

Needs torch and transformers. Both models read the same rows of tokens; in torch hooks behind the
layers keep the states, the model's own norm and head make the logits of all tokens, and ranks are
counted there in float64. OUT.json gets the largest relative difference of each metric over all
depth positions, for the mean over all tokens.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

from resjax.cli.actions import loading
from resjax.study.analysis import measure

TOKENS, ROW, ROWS = 1024, 256, 4


def main(out: str, text: str, *folders: str) -> None:
  """Compares the models of the folders, and writes the differences into a file."""
  found = dict(compared(text, folder) for folder in folders)
  pathlib.Path(out).write_text(json.dumps(found, indent=1) + "\n")
  print(json.dumps(found, indent=1))


def compared(text: str, folder: str) -> tuple[str, dict]:
  """Returns the name of one model, and the largest relative difference of each metric."""
  model = loading.from_huggingface(folder)
  data = loading.read_text(
    model, text, max_tokens=TOKENS, batch_size=ROWS, seq_len=ROW, form="auto", field="text"
  )
  ours = measure(
    model.decoder, data.batches, batch_size=ROWS, model=model.name, corpus=data.name
  ).readings["closed"]["all"]
  theirs = in_torch(folder, data.batches)
  worst = {}
  for name, values in theirs.items():
    apart = np.abs(ours.metrics[name] - values)
    worst[name] = float(np.max(apart / np.maximum(np.abs(values), 1e-3)))
  return model.name, {"tokens": ours.num_tokens, "largest_relative_difference": worst}


@torch.no_grad()
def in_torch(folder: str, batches) -> dict[str, np.ndarray]:
  """Returns the mean over tokens of each metric, by depth position [P]."""
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
  layers, norm = model.model.layers, model.model.norm
  kept: list[torch.Tensor] = []
  layers[0].register_forward_pre_hook(lambda _, args: kept.append(args[0]))
  for layer in layers:
    layer.register_forward_hook(
      lambda _, __, out: kept.append(out[0] if isinstance(out, tuple) else out)
    )
  embedding = model.get_input_embeddings().weight.double()
  head = model.lm_head.weight.double()
  sums, count = None, 0
  for ids, positions in segments(batches):
    kept.clear()
    model(torch.tensor(ids)[None], position_ids=torch.tensor(positions)[None])
    e, u = embedding[ids[:-1]], head[ids[1:]]
    rows = []
    for state in kept:
      normed = norm(state)[0, :-1]
      logits = model.lm_head(normed).double()
      rows.append(metrics(state[0, :-1].double(), normed.double(), logits, ids, e, u))
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    sums = found if sums is None else {name: sums[name] + found[name] for name in sums}
    count += len(ids) - 1
  assert sums is not None
  return {name: values / count for name, values in sums.items()}


def segments(batches):
  """Yields the tokens and positions of each document in the rows that has a next token."""
  for batch in batches:
    for ids, owners, positions in zip(
      batch["inputs"], batch["segment_ids"], batch["positions"], strict=True
    ):
      for owner in np.unique(owners[owners > 0]):
        own = owners == owner
        if own.sum() > 1:
          yield ids[own].astype(np.int64), positions[own].astype(np.int64)


def metrics(h, normed, logits, ids, e, u) -> dict[str, float]:
  """Returns the sums of each metric over the tokens of a document at one depth position."""
  log_p = logits - logits.logsumexp(-1, keepdim=True)
  found = {"entropy": -(log_p.exp() * log_p).sum(-1), "hidden_norm": h.norm(dim=-1)}
  for name, tokens in (("input", ids[:-1]), ("next", ids[1:])):
    own = torch.gather(logits, 1, torch.tensor(tokens)[:, None])
    rank = 1.0 + (logits > own).sum(-1)
    log_own = torch.gather(log_p, 1, torch.tensor(tokens)[:, None])[:, 0]
    found |= {
      f"{name}_rank": rank,
      f"{name}_log_rank": rank.log(),
      f"{name}_probability": log_own.exp(),
    }
  found["next_nats"] = -log_own
  cosine = torch.nn.functional.cosine_similarity
  for name, rows in (("input", e), ("next", u)):
    found |= {
      f"cosine_{name}": cosine(h, rows, dim=-1),
      f"cosine_{name}_normed": cosine(normed, rows, dim=-1),
      f"projection_{name}": (h * rows).sum(-1) / rows.norm(dim=-1),
    }
  return {name: float(values.double().sum()) for name, values in found.items()}


if __name__ == "__main__":
  main(*sys.argv[1:])
