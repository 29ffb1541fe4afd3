"""`ringsmith debug`: a person leads a run in a terminal. `app` is the screen, `session` what its keys do."""
