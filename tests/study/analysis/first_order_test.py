"""The slopes of the loss equal finite differences of the loss of the attenuated model."""

import dataclasses

import numpy as np
import pytest

from resjax.data.eval_text import measured_text
from resjax.data.tokenizer import ByteTokenizer
from resjax.models import loss_sums
from resjax.study.analysis.first_order import slopes
from resjax.study.analysis.path_intervention import attenuate
from tests.data.conftest import make_texts
from tests.helpers import decoders
from tests.helpers.losses import nats_per_token

SIZES = {"vocab_size": 257, "max_positions": 16}


def text(max_tokens=50, batch_size=2):
  options = {"seq_len": 16, "batch_size": batch_size, "max_tokens": max_tokens}
  return measured_text("words", make_texts(9), ByteTokenizer(), **options)


@pytest.mark.parametrize(
  "residual", ["standard", "gate", pytest.param("block_attn_res", marks=pytest.mark.slow)]
)
def test_equal_finite_differences(residual):
  decoder = decoders.drawn(decoders.config("llama", residual=residual, **SIZES))
  found, errors = slopes(decoder, text())
  step = 0.02
  for layer, site in np.ndindex(found.shape):
    losses = []
    for sign in (-1, 1):
      factors = np.ones(found.shape)
      factors[layer, site] = np.exp(sign * step)
      losses.append(nats_per_token(attenuate(decoder, factors), text().batches))
    want = (losses[1] - losses[0]) / (2 * step)
    np.testing.assert_allclose(found[layer, site], want, rtol=2e-2, atol=2e-4)
  assert errors.shape == found.shape and (errors > 0).all()


def test_sums_by_row_add_up_to_those_of_the_batch():
  decoder, batch = decoders.drawn(decoders.config("llama", **SIZES)), text(64, 4).batches[0]
  batch = {**batch, "bytes": np.arange(4)}
  hidden = decoder(batch["inputs"], batch["segment_ids"], batch["positions"])
  found, whole = (loss_sums(decoder, hidden, batch, 8, by_row=by_row) for by_row in (True, False))
  np.testing.assert_array_equal(found.bytes, np.arange(4))
  for name, values in vars(whole).items():
    np.testing.assert_allclose(getattr(found, name).sum(), values, rtol=1e-6, err_msg=name)


def test_errors_are_those_of_the_rows_own_slopes():
  decoder = decoders.drawn(decoders.config("llama", **SIZES))
  whole, errors = slopes(decoder, text(64, 4))
  rows = [slopes(decoder, text_of_row(row))[0] for row in range(4)]
  np.testing.assert_allclose(whole, np.mean(rows, axis=0), rtol=1e-4, atol=1e-7)
  np.testing.assert_allclose(errors, np.std(rows, axis=0, ddof=1) / 2, rtol=1e-3, atol=1e-7)


def text_of_row(row):
  whole = text(64, 4)
  (batch,) = whole.batches
  return dataclasses.replace(
    whole, batches=({name: array[row : row + 1] for name, array in batch.items()},)
  )
