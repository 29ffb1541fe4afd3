"""The doors: thin, all of them call `service.run.run_one` or the harness."""
