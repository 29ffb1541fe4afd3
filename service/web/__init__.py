"""Web pages of the server, by NiceGUI, which brings all of its own script: nothing is asked of another host.

What models and candidates wrote is shown by elements that take text (`ui.label`, `ui.codemirror`, cells of tables),
never by those that take HTML or Markdown.
"""

LOGIN = "/login"
PUBLIC = (LOGIN,)
"""Beginnings of paths for which nobody needs a token (`service.http.guard.Rules.public`)."""
