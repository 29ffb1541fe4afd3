"""Where a sweep's candidates are evaluated, other than on this machine (`harness.pool.local`)."""
