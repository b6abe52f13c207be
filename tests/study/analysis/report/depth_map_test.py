"""The depth-attention map shows every weight, whatever its sign."""

import dataclasses

import numpy as np
import pytest

from resjax.study.analysis.report.alignment_figures import depth_map
from tests.helpers.alignments import alignment


@pytest.mark.parametrize(("low", "limits"), [(0.5, (0, 1)), (-1.5, (-1.5, 1.5))])
def test_weights_that_are_not_zero_have_a_colour(low, limits):
  given = alignment(depth_weights=True)
  weights = given.depth_weights.weights.copy()
  weights[1, :2] = low, 1 - low if low > 0 else 0.25
  changed = dataclasses.replace(given.depth_weights, weights=weights)
  (image,) = depth_map(dataclasses.replace(given, depth_weights=changed)).axes[0].images
  np.testing.assert_array_equal(image.get_array().mask, weights == 0)
  assert image.get_clim() == limits
