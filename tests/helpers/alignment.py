"""Alignment of a small decoder in float64 numpy, from activations that a plain loop stored."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.combinators import TokenContext
from resjax.combinators.base import OUTPUT
from resjax.models.decode_cache import TokensInRows
from resjax.nn.rope import Rotation
from tests.helpers import decoders


def states(decoder, batch):
  """What a loop over layers and sites leaves, float64: dict of lists in order of depth.

  closed [M + 1], read [M + 1], branch [M] of [B, T, D]; weights: (layer, site) -> [N, B, T].
  """
  graphdef, state = nnx.split(decoder)
  found = jax.jit(lambda state, batch: _states(nnx.merge(graphdef, state), batch))(state, batch)
  return jax.tree.map(np.float64, found)


def _states(decoder, batch):
  c = decoder.combinator
  tokens = TokensInRows(batch["positions"], batch["segment_ids"])
  x = decoder.embed(batch["inputs"], batch["positions"])
  state = c.init(x, TokenContext(batch["segment_ids"]))
  graphdef, stacked = nnx.split(decoder.layers)
  found = {"closed": [x], "read": [], "branch": [], "weights": {}}

  def weigh(layer, site):
    weights = c.depth_weights(state, layer, site)
    if weights is not None:
      shape = len(weights), *batch["inputs"].shape
      found["weights"][layer, site] = jnp.broadcast_to(weights, shape)

  for index in range(c.num_layers):
    layer = nnx.merge(graphdef, jax.tree.map(lambda leaf, i=index: leaf[i], stacked))
    for site in c.sites:
      views, tape = c.read(state, index, site)
      weigh(index, site)
      normed = {name: norm(views[name]) for name, norm in layer.norms[site].items()}
      rotation = Rotation((decoder.config.layer_ropes[index],))
      out = decoders.branch(layer, site, normed, tokens, rotation)
      state = c.write(state, index, site, out, normed=normed, tape=tape)
      found["read"].append(views["x"])
      found["branch"].append(out)
      found["closed"].append(c.final_after(state, index, site))
  weigh(c.num_layers, OUTPUT)
  found["read"].append(c.final(state))
  return found


def norm(decoder, x):
  """The final norm, RMSNorm or LayerNorm, from its equation."""
  parameters = {
    k: np.float64(v) for k, v in nnx.to_pure_dict(nnx.state(decoder.final_norm)).items()
  }
  eps = decoder.config.norm_eps
  if decoder.config.norm == "layernorm":
    x = x - x.mean(axis=-1, keepdims=True)
  x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
  return x * parameters["scale"] + parameters.get("bias", 0.0)


def softmax(logits):
  p = np.exp(logits - logits.max())
  return p / p.sum()


def counted(batch):
  """The (row, position) whose next token lies in the same segment."""
  ids = np.asarray(batch["segment_ids"])
  rows, length = ids.shape
  return [
    (b, t)
    for b in range(rows)
    for t in range(length - 1)
    if ids[b, t] and ids[b, t] == ids[b, t + 1]
  ]


def of_token(table, head, h, n, this, following, final=None):
  """The metrics of one hidden state h [D], n with the norm; `final` is the last prediction [V]."""
  logits = head @ n
  p = softmax(logits)
  found = {"entropy": -np.sum(p * np.log(p))}
  for name, token in (("input", this), ("next", following)):
    rank = 1 + np.sum(logits > logits[token])
    found |= {f"{name}_rank": rank, f"{name}_log_rank": np.log(rank)}
    found[f"{name}_probability"] = p[token]
  found["next_nats"] = -np.log(p[following])
  found["top1_is_input"] = float(np.argmax(p) == this)
  found["top1_is_target"] = float(np.argmax(p) == following)
  if final is not None:
    found["kl_to_final"] = np.sum(final * np.log(final / p))
  e, u = table[this], head[following]
  for name, v in (("input", e), ("next", u)):
    unit = v / np.linalg.norm(v)
    found[f"cosine_{name}"] = h @ unit / np.linalg.norm(h)
    found[f"cosine_{name}_normed"] = n @ unit / np.linalg.norm(n)
    found[f"projection_{name}"] = h @ unit
  span = np.stack([e, u], axis=1)
  within = span @ np.linalg.lstsq(span, h, rcond=1e-10)[0]
  found["energy_share"] = within @ within / (h @ h)
  found["hidden_norm"] = np.linalg.norm(h)
  return found


class Trajectories:
  """Metrics of every token that counts, by reading and position; `found` is that of `states`.

  `kl(t)` says whether the token at position t of a row has its KL taken.
  """

  def __init__(self, decoder, found, batch, *, every="site", kl=lambda t: True):
    tokens, self.members = np.asarray(batch["inputs"]), counted(batch)
    step = len(decoder.combinator.sites) if every == "layer" else 1
    table, head = np.float64(decoder.embed.embedding[...]), np.float64(decoder.head)
    last = norm(decoder, found["read"][-1])
    finals = {at: softmax(head @ last[at]) for at in self.members if kl(at[1])}
    pairs = {(b, t): (tokens[b, t], tokens[b, t + 1]) for b, t in self.members}

    def position(h):
      n = norm(decoder, h)
      return {
        at: of_token(table, head, h[at], n[at], *pairs[at], finals.get(at)) for at in self.members
      }

    self._found = {
      reading: [position(h) for h in found[reading][::step]] for reading in ("closed", "read")
    }
    branches = [sum(found["branch"][i : i + step]) for i in range(0, len(found["branch"]), step)]
    self._norms = [np.linalg.norm(out, axis=-1) for out in branches]

  def means(self, reading, members):
    """Name -> means [P] over the (row, position) of `members`."""
    found = {"branch_norm": [np.nan, *(np.mean([n[at] for at in members]) for n in self._norms)]}
    for position in self._found[reading]:
      rows = [position[at] for at in members]
      for name in {name for row in rows for name in row}:
        mean = np.mean([row[name] for row in rows if name in row])
        found.setdefault(name, []).append(mean)
    return found
