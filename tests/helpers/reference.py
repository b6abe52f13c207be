"""Residual systems in float64 numpy, sublayer by sublayer, from the equations of their papers."""

import numpy as np

EPS = 1e-6  # of the branches' norms


def rms(v, eps):
  return v / np.sqrt(np.mean(v**2, axis=-1, keepdims=True) + eps)


def run_branch(weights, site, x, mix_tokens=True):
  """Normalised input and output of a branch of tests/helpers/toy.py; x: [B, T, D]."""
  normed = rms(x, EPS)
  hidden = np.tanh((normed * weights["gain"]) @ weights["up"])
  if site == "attention" and mix_tokens:
    hidden = np.stack([hidden[:, : t + 1].mean(axis=1) for t in range(x.shape[1])], axis=1)
  return normed, hidden @ weights["down"]


def sublayers(layers, sites):
  """(layer, index of the site, run) of every sublayer in order; run(x) -> (normed, out)."""
  num_layers = len(layers[sites[0]]["gain"])
  for layer in range(num_layers):
    for index, site in enumerate(sites):
      weights = {name: array[layer] for name, array in layers[site].items()}
      yield layer, index, lambda x, w=weights, s=site: run_branch(w, s, x)


def standard(params, layers, x, sites):
  for _, _, run in sublayers(layers, sites):
    x = x + run(x)[1]
  return x


def attenuation(params, layers, x, sites, *, layers_cut, alpha, cut_sites=None):
  num_layers = len(layers[sites[0]]["gain"])
  layers_cut = [layers_cut] if isinstance(layers_cut, int) else layers_cut
  cut = {layer % num_layers for layer in layers_cut}
  for layer, index, run in sublayers(layers, sites):
    attenuated = layer in cut and sites[index] in (cut_sites or sites)
    x = (alpha if attenuated else 1.0) * x + run(x)[1]
  return x


def sigmoid(z):
  return 1.0 / (1.0 + np.exp(-z))


def gate(params, layers, x, sites, *, granularity, kappa=1.0):
  num_layers = len(layers[sites[0]]["gain"])
  a = params["bias"]
  for layer, index, run in sublayers(layers, sites):
    n, out = run(x)
    if granularity == "layer":
      alpha = 2 * sigmoid(a[layer, index])
    elif granularity == "depth_mixture":
      alpha = 1 - kappa * (np.exp(a[layer]) / np.sum(np.exp(a)) - 1 / num_layers)
    elif granularity == "token":
      w = params["weight"][layer, index]
      alpha = 2 * sigmoid(np.einsum("d,btd->bt", w, n) + a[layer, index])[:, :, None]
    else:
      alpha = 2 * sigmoid(params["weight"][layer, index] * n + a[layer, index])
    x = alpha * x + out
  return x


def depth_read(w, gamma, values, eps):
  """h = Σ_j a_j v_j, a = softmax_j(w · (γ ⊙ RMS(v_j))), for every token; values: [..., D] each."""
  logits = np.stack([np.sum(w * (gamma * rms(v, eps)), axis=-1) for v in values])
  a = np.exp(logits - logits.max(axis=0))
  a = a / a.sum(axis=0)
  h = np.zeros_like(values[0])
  for share, v in zip(a, values, strict=True):
    h = h + share[..., None] * v
  return h


def attn_res(params, layers, x, sites, *, eps=1e-6):
  """Full: section 3.1."""
  values = [x]
  for layer, index, run in sublayers(layers, sites):
    w, gamma = params["query"][layer, index], params["key_scale"][layer, index]
    values.append(run(depth_read(w, gamma, values, eps))[1])
  return depth_read(params["final_query"], params["final_key_scale"], values, eps)


def block_attn_res(params, layers, x, sites, *, layers_per_block, eps=1e-6):
  """Block: section 3.2, in the paper's unit, S sublayers per block."""
  per_block = layers_per_block * len(sites)
  blocks = [x]  # b_0 = e
  partial = None
  for i, (layer, index, run) in enumerate(sublayers(layers, sites)):
    if i % per_block == 0 and partial is not None:
      blocks.append(partial)
      partial = None
    values = blocks if partial is None else [*blocks, partial]
    w, gamma = params["query"][layer, index], params["key_scale"][layer, index]
    out = run(depth_read(w, gamma, values, eps))[1]
    partial = out if partial is None else partial + out
  return depth_read(params["final_query"], params["final_key_scale"], [*blocks, partial], eps)


SYSTEMS = {
  "standard": standard,
  "attenuation": attenuation,
  "gate": gate,
  "attn_res": attn_res,
  "block_attn_res": block_attn_res,
}


def forward(name, options, params, layers, x, sites=("attention", "mlp")):
  """Output [B, T, D] of the toy model; params: numpy arrays by attribute name."""
  options = dict(options)
  if name == "attenuation":
    options["layers_cut"] = options.pop("layers")
  return SYSTEMS[name](params, layers, x, sites, **options)


def depth_read_gradients(w, gamma, values, eps, dh):
  """Cotangents of w, γ and the values [N, ..., D] of `depth_read`, for the cotangent dh of h."""
  width = values[0].shape[-1]
  g = w * gamma
  r = np.stack([1 / np.sqrt(np.mean(v**2, axis=-1) + eps) for v in values])
  a = r * np.stack([np.sum(g * v, axis=-1) for v in values])
  p = np.exp(a - a.max(axis=0))
  p = p / p.sum(axis=0)
  e = np.stack([np.sum(dh * v, axis=-1) for v in values])
  ds = p * (e - np.sum(p * e, axis=0))
  dg, dvalues = np.zeros(width), []
  for n, v in enumerate(values):
    pn, rn, an, dsn = (s[n][..., None] for s in (p, r, a, ds))
    dvalues.append(pn * dh + dsn * rn * g - dsn * an * rn**2 / width * v)
    dg = dg + np.sum((dsn * rn * v).reshape(-1, width), axis=0)
  return dg * gamma, dg * w, np.stack(dvalues)


def causal_attention(q, k, v, segment_ids):
  """Attention over earlier tokens of the same segment, one query at a time; [B, T, heads, C]."""
  batch, length, num_heads, width = q.shape
  group = num_heads // k.shape[2]
  out = np.zeros_like(q)
  for b in range(batch):
    for h in range(num_heads):
      for t in range(length):
        seen = [s for s in range(t + 1) if segment_ids[b, s] == segment_ids[b, t]]
        logits = np.array([q[b, t, h] @ k[b, s, h // group] for s in seen]) / np.sqrt(width)
        p = np.exp(logits - logits.max())
        out[b, t, h] = sum(x * v[b, s, h // group] for x, s in zip(p / p.sum(), seen, strict=True))
  return out
