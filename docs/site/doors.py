"""Classes that several doors export, such as `Experiment`."""

import inspect

_described: dict[type, str] = {}


def describe_once(app, what, name, member, skip, options):
  """Leaves a class out of a door where another door describes it; its own module does so anyway.

  Args:
    app: Sphinx's application.
    what: the kind of thing whose member is looked at.
    name: of the member.
    member: the member.
    skip: whether it would be left out otherwise.
    options: those of the directive.

  Returns:
    True for a class that is left out; None leaves the decision to Sphinx.
  """
  module = app.env.current_document.autodoc_module
  if what != "module" or not inspect.isclass(member) or member.__module__ == module:
    return None
  return True if _described.setdefault(member, module) != module else None
