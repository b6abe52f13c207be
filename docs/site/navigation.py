"""The navigation beside pages of source code, of which there are hundreds."""

_trees: dict[tuple, str] = {}


def share(app, pagename, templatename, context, doctree):
  """Lets pages of source code that are equally deep in folders have one navigation tree.

  The tree marks the page that it is drawn for, and a page of source code is not in it; only the way
  up to the root differs. To draw one for every page took half the time of the whole site.

  Args:
    app: Sphinx's application.
    pagename: the page.
    templatename: what lays it out.
    context: what the layout is given; its `toctree` is replaced.
    doctree: the page's text, none for source code.
  """
  if not pagename.startswith("_modules/"):
    return
  draw, depth = context["toctree"], pagename.count("/")

  def drawn(**options):
    key = (depth, *sorted(options.items()))
    if key not in _trees:
      _trees[key] = draw(**options)
    return _trees[key]

  context["toctree"] = drawn
