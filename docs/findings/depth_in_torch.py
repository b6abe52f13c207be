"""Compares the depth probes of `resjax inspect --what=depth` with loops in torch, on a real model.

  python docs/findings/depth_in_torch.py OUT.json TEXT FOLDER [FOLDER ...]

Needs torch and transformers. Both models read the same rows of tokens; in torch a loop calls the
layers of transformers one after another, without some of them or in another order, and Jacobians
are products of a single layer. OUT.json gets the largest relative difference of each probe, and
what resjax found, which OUT-MODEL.png draws. OMP_NUM_THREADS=1 is faster where cores are shared.
"""

import dataclasses
import json
import pathlib
import sys

import numpy as np
import torch
import transformers

from resjax.base import locations
from resjax.cli.actions import loading
from resjax.study.analysis import depth_passes, depth_probes, plots, to_plain
from resjax.study.analysis.report import reading_figures

TOKENS, ROW, ROWS, VECTORS = 256, 64, 4, 2
LEAST = 1e-2  # of a value by which a difference is divided


def main(out: str, text: str, *folders: str) -> None:
  """Compares the models of the folders, and writes the differences into a file."""
  found = dict(compared(text, folder) for folder in folders)
  pathlib.Path(out).write_text(json.dumps(shortened(found)) + "\n")
  for name, one in found.items():
    print(name, json.dumps(one["largest_relative_difference"], indent=1))
    draw(one["probes"], f"{out.removesuffix('.json')}-{name}.png")


def compared(text: str, folder: str) -> tuple[str, dict]:
  """Returns the name of one model, and the largest relative difference of each probe."""
  model = loading.from_huggingface(folder)
  data = loading.read_text(
    model, text, max_tokens=TOKENS, batch_size=ROWS, seq_len=ROW, form="auto", field="text"
  )
  ours = depth_probes.probe(model.decoder, data, model=model.name, vectors=VECTORS)
  theirs, worst = InTorch(folder, data.batches).probes(ours.pruned_layers), {}
  for name, values in theirs.items():
    mean = np.asarray(ours.loss if name == "loss" else getattr(ours, name).mean)
    there = np.isfinite(values)
    assert np.isfinite(mean[there]).all() and there.any(), name
    apart = np.abs(mean - values)[there] / np.maximum(np.abs(values[there]), LEAST)
    worst[name] = float(np.max(apart))
  ours = dataclasses.replace(ours, corpus=pathlib.Path(text).name)
  return model.name, {"largest_relative_difference": worst, "probes": to_plain(ours)}


def draw(probes: dict, out: str) -> None:
  """Draws what `DepthProbes` holds, given as plain data."""
  measured = {
    name: depth_probes.Measured(*(np.array(part, float) for part in value.values()))
    for name, value in probes.items()
    if isinstance(value, dict)
  }
  pairs = tuple(map(tuple, probes["pairs"]))
  found = depth_probes.DepthProbes(**probes | measured | {"pairs": pairs})
  plots.save(reading_figures.depth(found), locations.path(out, "OUT", writable=True))


def shortened(value):
  """Returns plain data with numbers of six digits."""
  if isinstance(value, dict):
    return {name: shortened(item) for name, item in value.items()}
  if isinstance(value, list):
    return [shortened(item) for item in value]
  return float(f"{value:.6g}") if isinstance(value, float) else value


class InTorch:
  """A model of transformers, whose layers are called in any order on documents of some rows."""

  def __init__(self, folder: str, batches):
    self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    self.model.requires_grad_(False)
    self.layers = list(self.model.model.layers)
    self.documents = [self._opened(*one) for one in documents(batches)]
    self.tokens = sum(len(targets) for targets, _, _ in self.documents)
    self.asked = sum((targets >= 0).sum() for targets, _, _ in self.documents)

  def _opened(self, ids: np.ndarray, positions: np.ndarray, targets: np.ndarray) -> tuple:
    """Returns the targets, the embedding, and what transformers gives every layer besides."""
    kept = []
    hook = self.layers[0].register_forward_pre_hook(
      lambda _, args, kwargs: kept.append((args[0], kwargs)), with_kwargs=True
    )
    places = {"position_ids": torch.tensor(positions)[None], "use_cache": False}
    self.model(torch.tensor(ids)[None], **places)
    hook.remove()
    return targets, *kept[0]

  def states(self, start, rest, order) -> list[torch.Tensor]:
    """Returns the states before and behind each place; None stands for a place left empty."""
    found = [start]
    for place in order:
      out = found[-1] if place is None else self.layers[place](found[-1], **rest)
      found.append(out[0] if isinstance(out, tuple) else out)
    return found

  def loss(self, order) -> float:
    """Returns the loss of the layers in an order."""
    return sum(
      self.nats(targets, self.states(start, rest, order)[-1])
      for targets, start, rest in self.documents
    )

  def nats(self, targets: np.ndarray, last: torch.Tensor) -> float:
    """Returns the share of a document in the loss; of -1 among the targets nothing is asked."""
    (places,) = np.nonzero(targets >= 0)
    log_p = self.model.lm_head(self.model.model.norm(last))[0].double().log_softmax(-1)
    return float(-log_p[places, targets[places]].sum() / self.asked)

  def probes(self, removed) -> dict[str, np.ndarray]:
    """Returns the probes; `removed` are the layers that are pruned, in their order."""
    depth = len(self.layers)
    order, swapped = list(range(depth)), []
    loss, angular, causal = 0.0, np.zeros([depth + 1] * 2), np.zeros([depth] * 2)
    skipped = np.zeros(depth)
    for targets, start, rest in self.documents:
      whole = self.states(start, rest, order)
      loss += self.nats(targets, whole[-1])
      z = torch.cat(whole).double()
      unit = z / z.norm(dim=-1, keepdim=True)
      cosine = torch.einsum("itd,jtd->ijt", unit, unit).clamp(-1, 1)
      angular += (cosine.arccos().sum(-1) / np.pi / self.tokens).numpy()
      for layer in order:
        changed = self.states(start, rest, without(order, [layer]))
        skipped[layer] += self.nats(targets, changed[-1])
        u, v = (torch.cat(list(one)).double().diff(dim=0) for one in (whole, changed))
        causal[layer] += ((v - u).norm(dim=-1) / u.norm(dim=-1)).sum(-1).numpy() / self.tokens
    angular[np.tril_indices(depth + 1)] = np.nan
    causal[np.tril_indices(depth)] = np.nan
    for at in order[:-1]:
      swap = [*order[:at], at + 1, at, *order[at + 2 :]]
      swapped.append(abs(self.loss(swap) - loss) / loss)
    pruned = [self.loss(without(order, removed[: n + 1])) for n in range(len(removed))]
    return {
      "loss": np.array(loss),
      "angular": angular,
      "causal": causal,
      "skipped": skipped - loss,
      "permutation": np.array(swapped),
      "pruned": np.array(pruned) - loss,
      "jacobian": self.jacobians(),
    }

  def jacobians(self) -> np.ndarray:
    """Returns ‖J − I‖ / √D of each layer, from the products with the vectors of resjax."""
    width, depth = self.documents[0][1].shape[-1], len(self.layers)
    vectors = torch.tensor(depth_passes.signs(VECTORS, 1, width, seed=0)).reshape(VECTORS, width)
    mean = -vectors[:, None].double().repeat(1, depth, 1)
    for _, start, rest in self.documents:
      states = self.states(start, rest, range(depth))
      for layer, state in enumerate(states[:-1]):
        with torch.enable_grad():
          moved = state.detach().requires_grad_()
          out = self.states(moved, rest, [layer])[-1]
          for number, v in enumerate(vectors):
            (found,) = torch.autograd.grad(out, moved, v.expand_as(out), retain_graph=True)
            mean[number, layer] += found.double().sum((0, 1)) / self.tokens
    return (mean.square().sum(-1).mean(0) / width).sqrt().numpy()


def without(order, removed) -> list:
  """Returns an order of layers in which the places of some are empty."""
  return [None if layer in removed else layer for layer in order]


def documents(batches):
  """Yields the tokens, positions and targets of each document in the rows."""
  for batch in batches:
    rows = (np.asarray(batch[name]) for name in ("segment_ids", "inputs", "positions", "targets"))
    for owners, *arrays in zip(*rows, strict=True):
      for owner in np.unique(owners[owners > 0]):
        yield tuple(array[owners == owner].astype(np.int64) for array in arrays)


if __name__ == "__main__":
  with torch.no_grad():
    main(*sys.argv[1:])
