"""The HTTP API: `app.make_app` over a `service.jobs.keeper.Keeper`."""
