"""From which layer on the last token carries the answer, over pairs of prompts.

  python docs/findings/patched_prompts.py OUT.json MODEL [MODEL ...]

Each pair is "The capital of A is" and "The capital of B is", run as in `resjax inspect
--what=patching`: the states of the first prompt replace those of the second one, a depth position
and a token at a time. For each pair the file says after which layer the state of the country stops
to bring back half of the difference between both answers, and from which layer on that of the last
token does. Countries whose capital is not among the five most probable tokens, and pairs whose
prompts differ in length, are left out and counted. MODEL is what --hf takes: a folder of Hugging
Face, a GGUF file, or a name on the hub.
"""

import itertools
import json
import pathlib
import sys

import numpy as np

from resjax.cli.actions import loading
from resjax.study import TrainedModel
from resjax.study.analysis import patch

CAPITALS = {
  "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Germany": "Berlin",
  "Russia": "Moscow", "China": "Beijing", "Egypt": "Cairo", "Greece": "Athens", "Ireland": "Dublin",
  "Austria": "Vienna", "Poland": "Warsaw",
}  # fmt: skip


def main(out: str, *models: str) -> None:
  """Measures models, and writes what was found into one file."""
  found = {model.name: of_model(model) for model in map(loading.from_huggingface, models)}
  pathlib.Path(out).write_text(json.dumps(found) + "\n")
  for name, one in found.items():
    for key in ("subject_until", "last_from"):
      layers = [pair[key] for pair in one["pairs"]]
      print(name, key, f"n = {len(layers)}", f"median {np.median(layers)}", sorted(layers))


def of_model(model: TrainedModel) -> dict:
  """Returns the layers of each pair of neighbours in the list of countries."""
  known = {country: prompt for country in CAPITALS if (prompt := asked(model, country)) is not None}
  pairs, left_out = [], len(CAPITALS) - len(known)
  for a, b in itertools.pairwise(known):
    if len(known[a]) != len(known[b]):
      left_out += 1
      continue
    answers = tuple(answer(model, country) for country in (a, b))
    patched = patch(model.decoder, known[a], known[b], answers)
    (subject,) = np.flatnonzero(known[a] != known[b])[-1:]
    carried = {
      "subject": patched.recovered(patched.patched[:, subject]),
      "last": patched.recovered(patched.patched[:, -1]),
    }
    pairs.append(
      {
        "clean": a,
        "corrupted": b,
        # Depth position 0 is the embedding, so that position p lies behind layer p - 1.
        "subject_until": int(np.flatnonzero(carried["subject"] >= 0.5)[-1]) - 1,
        "last_from": int(np.flatnonzero(carried["last"] < 0.5)[-1]),
        **{name: np.round(values, 4).tolist() for name, values in carried.items()},
      }
    )
  return {"num_layers": model.decoder.config.num_layers, "left_out": left_out, "pairs": pairs}


def answer(model: TrainedModel, country: str) -> int:
  """Returns the first token of the name of a capital."""
  (tokens,) = model.tokenizer.encode_batch([" " + CAPITALS[country]])
  return int(tokens[0])


def asked(model: TrainedModel, country: str) -> np.ndarray | None:
  """Returns the prompt about a country, or None where its capital is not among five answers."""
  prompt = np.asarray(model.prompt(f"The capital of {country} is"))
  hidden = model.decoder(prompt[None], np.ones_like(prompt)[None], np.arange(len(prompt))[None])
  said = np.asarray(model.decoder.logits(hidden[:, -1]))[0].argsort()[::-1][:5]
  return prompt if answer(model, country) in said else None


if __name__ == "__main__":
  main(*sys.argv[1:])
