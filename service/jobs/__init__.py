"""Durable jobs: what was asked for is in a database, what came of it in the records; `keeper.Keeper` leads them."""
