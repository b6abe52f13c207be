"""Kernels in float64 numpy, from their equations."""

import numpy as np


def rms(v, eps):
  return v / np.sqrt(np.mean(v**2, axis=-1, keepdims=True) + eps)


def depth_read(w, gamma, values, eps):
  """h = Σ_j a_j v_j, a = softmax_j(w · (γ ⊙ RMS(v_j))), for every token; values: [..., D] each."""
  logits = np.stack([np.sum(w * (gamma * rms(v, eps)), axis=-1) for v in values])
  a = np.exp(logits - logits.max(axis=0))
  a = a / a.sum(axis=0)
  h = np.zeros_like(values[0])
  for share, v in zip(a, values, strict=True):
    h = h + share[..., None] * v
  return h


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


def causal_attention(q, k, v, segment_ids, window=None):
  """Attention over (the last few) earlier tokens of the same segment; [B, T, heads, C]."""
  batch, length, num_heads, width = q.shape
  group = num_heads // k.shape[2]
  out = np.zeros_like(q)
  for b in range(batch):
    for h in range(num_heads):
      for t in range(length):
        start = 0 if window is None else max(0, t - window + 1)
        seen = [s for s in range(start, t + 1) if segment_ids[b, s] == segment_ids[b, t]]
        logits = np.array([q[b, t, h] @ k[b, s, h // group] for s in seen]) / np.sqrt(width)
        p = np.exp(logits - logits.max())
        out[b, t, h] = sum(x * v[b, s, h // group] for x, s in zip(p / p.sum(), seen, strict=True))
  return out
