"""The workloads: one file each; the file name is the registry."""
