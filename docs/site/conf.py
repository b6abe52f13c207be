"""How the site is built: `make docs`. Sphinx reads docs/, with MyST for Markdown and notebooks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import docstrings
import doors
import gallery
import links
import navigation

project = "resjax"
root_doc = "index"
extensions = [
  "myst_nb",
  "sphinx.ext.apidoc",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx.ext.viewcode",
]
exclude_patterns = ["site"]
html_theme = "furo"
html_title = "resjax"
html_show_copyright = False
# No page links to them, and their tables are wider than a telephone; the search finds names.
html_use_index = False
html_domain_indices = False

myst_heading_anchors = 4  # links such as attention.md#values-along-the-depth, as on GitHub
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_timeout = 300  # seconds

apidoc_modules = [
  {
    "path": "../../resjax",
    "destination": "generated/api",
    "max_depth": 4,
    "module_first": True,  # what a package is for, and then its modules
    "exclude_patterns": [
      # Its functions are on the page of its package; one of them has the name of the module.
      "../../resjax/interop/huggingface/remote_code/settings.py",
      # Each defines the flags of a process of its own; docs/commands.md shows what they take.
      "../../resjax/cli/commands",
    ],
  }
]
autodoc_mock_imports = ["lm_eval"]  # an extra with torch
autodoc_typehints = "description"
# Types such as `bytes` are also the names of attributes, and are links to none of them.
suppress_warnings = ["ref.python"]
napoleon_use_ivar = True


def setup(app):
  """Connects what is made of the repository at each build; see the modules beside this one."""
  app.connect("builder-inited", gallery.write_pages)
  app.connect("builder-inited", links.copy_pages)
  app.connect("source-read", links.rewrite)
  app.connect("html-page-context", navigation.share, priority=400)  # before the theme
  app.connect("autodoc-skip-member", doors.describe_once)
  app.connect("autodoc-process-docstring", docstrings.to_rst, priority=100)  # before napoleon
