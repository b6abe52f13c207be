"""Runs the notebooks and stores their plots in them, for readers of the repository.

  python docs/site/notebooks.py

Of all outputs plots alone are kept: texts have times and paths of the machine. The site runs the
notebooks itself, and shows all outputs.
"""

import base64
import io

import nbclient
import nbformat
from links import DOCS
from PIL import Image

_COLOURS = 64  # of a plot, which makes its file four times smaller


def main():
  """Runs every notebook of docs/notebooks, and writes it in its place."""
  for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell in notebook.cells:
      cell.metadata = {}
      if cell.cell_type == "code":
        cell.execution_count = None
        cell.outputs = [_plot(one) for one in cell.outputs if "image/png" in one.get("data", {})]
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)


def _plot(output):
  """Returns a plot with fewer colours."""
  image = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
  kept = io.BytesIO()
  image.convert("RGB").quantize(_COLOURS).save(kept, "png", optimize=True)
  data = {"image/png": base64.b64encode(kept.getvalue()).decode()}
  return nbformat.v4.new_output("display_data", data)


if __name__ == "__main__":
  main()
