"""Kernels in float64 numpy, from their equations."""

import numpy as np


def rms(v, eps):
  return v / np.sqrt(np.mean(v**2, axis=-1, keepdims=True) + eps)


def depth_read(w, gamma, values, eps, num_heads=1):
  """h = Σ_j a_j v_j, a = softmax_j(w · (γ ⊙ RMS(v_j))), for every token; values: [..., D] each.

  With heads, each does so on its own channels, with keys normalised over all of them.
  """
  keys = [gamma * rms(v, eps) for v in values]
  h = np.zeros_like(values[0])
  for c in heads(len(w), num_heads):
    logits = np.stack([np.sum(w[c] * key[..., c], axis=-1) for key in keys])
    a = np.exp(logits - logits.max(axis=0))
    a = a / a.sum(axis=0)
    for share, v in zip(a, values, strict=True):
      h[..., c] += share[..., None] * v[..., c]
  return h


def heads(width, num_heads):
  """The channels of every head."""
  size = width // num_heads
  return [slice(start, start + size) for start in range(0, width, size)]


def depth_read_gradients(w, gamma, values, eps, dh, num_heads=1):
  """Cotangents of w, γ and the values [N, ..., D] of `depth_read`, for the cotangent dh of h."""
  width = values[0].shape[-1]
  g = w * gamma
  r = np.stack([1 / np.sqrt(np.mean(v**2, axis=-1) + eps) for v in values])[..., None]
  dg, dvalues = np.zeros(width), np.zeros((len(values), *dh.shape))
  for c in heads(width, num_heads):
    dots = np.stack([np.sum(g[c] * v[..., c], axis=-1, keepdims=True) for v in values])
    a = r * dots
    p = np.exp(a - a.max(axis=0))
    p = p / p.sum(axis=0)
    e = np.stack([np.sum(dh[..., c] * v[..., c], axis=-1, keepdims=True) for v in values])
    ds = p * (e - np.sum(p * e, axis=0))
    for n, v in enumerate(values):
      dvalues[n, ..., c] += p[n] * dh[..., c] + ds[n] * r[n] * g[c]
      dvalues[n] += ds[n] * dots[n] * (-(r[n] ** 3) / width * v)  # through r, to all channels
      dg[c] += np.sum((ds[n] * r[n] * v[..., c]).reshape(-1, c.stop - c.start), axis=0)
  return dg * gamma, dg * w, dvalues


def causal_attention(q, k, v, segment_ids, window=None, scale=None, softcap=0.0):
  """Attention over (the last few) earlier tokens of the same segment; [B, T, heads, C]."""
  batch, length, num_heads, width = q.shape
  group = num_heads // k.shape[2]
  out = np.zeros_like(q)
  for b in range(batch):
    for h in range(num_heads):
      for t in range(length):
        start = 0 if window is None else max(0, t - window + 1)
        seen = [s for s in range(start, t + 1) if segment_ids[b, s] == segment_ids[b, t]]
        logits = np.array([q[b, t, h] @ k[b, s, h // group] for s in seen])
        logits = logits * (width**-0.5 if scale is None else scale)
        logits = softcap * np.tanh(logits / softcap) if softcap else logits
        p = np.exp(logits - logits.max())
        out[b, t, h] = sum(x * v[b, s, h // group] for x, s in zip(p / p.sum(), seen, strict=True))
  return out
