"""All tools and no guidance: the model goes on until it submits or its budget ends. ParallelKernelBench's agentic
setting, and what recorded runs before strategies were."""

from __future__ import annotations

from agent.strategies.base import Strategy


class Loop(Strategy):
    pass
