"""Evaluating on another machine: what crosses, the node's server, and the clients that have a Sandbox's surface."""
