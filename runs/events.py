"""What is written to `events.jsonl`: a closed, append-only vocabulary. The events are the truth; all else is a fold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from harness.types import (
    Backend,
    Candidate,
    Check,
    CollectivesRule,
    DType,
    Evaluation,
    Frozen,
    IsolationLevel,
    PlatformName,
    Protocol,
    Request,
)
from runs.messages import Message, ToolCall, Turn
from runs.rates import Charged


class Budget(Frozen):
    """Upper limits; None means no limit."""

    steps: int | None = 20
    """Model replies."""
    tokens: int | None = None
    """Input and output together."""
    usd: float | None = None
    wall_s: float | None = None
    """Working time: what was waited for rate limits and for devices that others had is not counted."""
    device_s: float | None = None
    """Seconds x devices under lease (GPU-seconds on CUDA)."""


class Spend(Frozen):
    """What has been used of a budget."""

    steps: int = 0
    tokens: int = 0
    input_tokens: int = 0
    """Of `tokens`."""
    cached_tokens: int = 0
    """Of `input_tokens`: read from a provider's cache."""
    usd: float = 0.0
    usd_known: bool = True
    """False once a reply had no known price."""
    wall_s: float = 0.0
    """Without `waited_s`."""
    waited_s: float = 0.0
    device_s: float = 0.0


class Target(Frozen):
    """When to stop early: a correct candidate whose speed-up's lower bound is above `speedup`."""

    speedup: float | None = None
    """None: no early stop; the run goes on until the model submits or the budget ends."""


class RunConfig(Frozen):
    """Everything that decides what a run does; resolved once, recorded in `RunStarted`."""

    problem: int
    suite: str = ""
    case: str
    platform: PlatformName
    world_size: int
    dtype: DType
    backend: Backend
    model: str
    protocol: Protocol = "ringsmith"
    check: Check = "oracle"
    trials: int = 3
    isolation: IsolationLevel = "auto"
    collectives: CollectivesRule = "allow"
    budget: Budget = Budget()
    target: Target = Target()
    strategy: str = "loop"
    """How the run is led (`agent.strategies`)."""
    context_tokens: int = 150_000
    """Input of one request from which on the conversation is replaced by a summary of the record (`agent.state`)."""
    timing: bool = True
    """Whether candidates are timed; without, a run is about being correct."""
    sample: int = 1
    """Which of several runs that are alike otherwise, from 1."""
    sandbox: str = ""
    """Where candidates are evaluated: a node's URL, `batch:FOLDER`, or "" for the machine that led the run."""

    def request(self, candidate: Candidate) -> Request:
        """To judge a candidate as this run does."""
        alike = {name: getattr(self, name) for name in Request.model_fields if name in RunConfig.model_fields}
        return Request(candidate=candidate, **alike)


class _Event(Frozen):
    at: float
    """Unix time in seconds."""


class RunStarted(_Event):
    kind: Literal["run_started"] = "run_started"
    run_id: str
    config: RunConfig
    prompts_hash: str
    messages: tuple[Message, ...]
    """The conversation's beginning, as sent."""
    prices: Charged | None = None
    """None in older records."""


class Sent(Frozen):
    """The body of a request, told by the one before it in the record (`runs.requests`)."""

    same: dict[str, int | None] = Field(default_factory=dict)
    """Fields that begin as they did, with the number of entries that are the same; None: the whole value."""
    new: dict[str, Any] = Field(default_factory=dict)
    """Other fields, and the entries that follow the same ones. No keys."""


class ModelReplied(_Event):
    """Written before the reply is acted on."""

    kind: Literal["model_replied"] = "model_replied"
    step: int
    turn: Turn
    """Without its `request`."""
    seconds: float
    request: Sent | None = None
    """None where nothing was sent (a replay) and in older records."""
    purpose: Literal["", "judge"] = ""
    """Empty: a message of the conversation. `judge`: the answer to a request of its own (`agent.judge`), and none."""
    asked: tuple[Message, ...] = ()
    """What a request of its own was made with."""


class AgentCalled(_Event):
    """A tool call of an agent that leads a run from outside (`agent.external`), written before it is made. It counts
    as a step."""

    kind: Literal["agent_called"] = "agent_called"
    step: int
    call: ToolCall


class ToolReturned(_Event):
    kind: Literal["tool_returned"] = "tool_returned"
    step: int
    call: ToolCall
    ok: bool
    """False if the call itself was wrong (unknown tool, bad arguments); a failing candidate is still ok."""
    text: str
    """What the model was told."""
    seconds: float
    candidate: str | None = None
    """Hash of the candidate that the call wrote or measured; its source is in `candidates/`."""
    evaluation: Evaluation | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    device_s: float = 0.0
    waited_s: float = 0.0
    """Of `seconds`: waiting for devices that others had."""


class RunResumed(_Event):
    """Another process goes on with a run whose process ended; the time between counts for nothing."""

    kind: Literal["run_resumed"] = "run_resumed"
    prices: Charged | None = None
    """Those from here on, where they are others than before."""


class ContextReset(_Event):
    """From here on the model is asked with the conversation's beginning, this text, and what follows it. The record
    keeps everything."""

    kind: Literal["context_reset"] = "context_reset"
    reason: Literal["long", "overflow", "strategy"]
    """The input came near its limit, the provider refused it, or the strategy begins anew."""
    text: str
    topic: str = ""
    """As in `UserMessage`."""


class ResultsShortened(_Event):
    """From here on the model is asked with the tools' results up to a step cut to their first lines
    (`agent.shortening`). The record keeps everything."""

    kind: Literal["results_shortened"] = "results_shortened"
    through: int
    """The last step whose results are cut."""


class LaneStarted(_Event):
    """From here on a lane that knows nothing of earlier ones: the model is asked with the conversation's beginning,
    this text and what follows it, and the tools know of `candidate` and what comes after it."""

    kind: Literal["lane_started"] = "lane_started"
    lane: int
    """From 2: a run begins with lane 1."""
    text: str = ""
    """Empty: not a message."""
    topic: str = ""
    """As in `UserMessage`."""
    candidate: str | None = None
    """Hash of the earlier candidate that it goes on from: its attempt 1."""


class UserMessage(_Event):
    """Text put to the model between steps by the loop (not by a tool)."""

    kind: Literal["user_message"] = "user_message"
    text: str
    topic: str = ""
    """Of a strategy's advice (`agent.strategies`); empty for the answer to a reply without a call."""


class PersonActed(_Event):
    """What a person asked of a run that goes on (`runs.control`), written before it is done."""

    kind: Literal["person_acted"] = "person_acted"
    request: str
    """Id of the request: one that is seen again is not applied again."""
    action: Literal["pause", "resume", "cancel", "hint", "candidate", "refused"]
    """`refused`: it could not be read as a request."""
    step: int
    """The last one before it."""
    text: str = ""
    """The hint, or why it was refused."""
    told: str = ""
    """What the model is told."""
    candidate: str | None = None
    """Hash of the candidate that is the current one from here on; its source is in `candidates/`."""


class RunFinished(_Event):
    kind: Literal["run_finished"] = "run_finished"
    reason: str
    """`target_met`, `submitted`, `budget: steps` (or another dimension), `budget: sweep usd` (the limit of several runs
    together), `model_stopped`, `cancelled`, `interrupted` or `error: ...`."""
    best: str | None
    official: Evaluation | None
    """The harness's own evaluation of the best candidate on fresh seeds; None if there was no candidate."""
    target_met: bool
    spend: Spend

    @property
    def final(self) -> bool:
        """Whether the run ended by itself or a person ended it, so that it cannot be resumed."""
        return is_final(self.reason)


CANCELLED = "cancelled"
"""The reason of a run that a person has ended."""
SWEEP = "budget: sweep"
"""What reasons begin with when a limit of several runs together has ended a run."""


def is_final(reason: str | None) -> bool:
    """Whether a run that ended so (`RunFinished.reason`; None: it has no end) is a result, for better or worse: not
    interrupted, no failure of ours or of a provider, not ended by a limit of several runs together. What is not can be
    resumed."""
    return reason is not None and reason != "interrupted" and not reason.startswith(("error:", SWEEP))


Event = Annotated[
    RunStarted
    | RunResumed
    | ModelReplied
    | AgentCalled
    | ToolReturned
    | UserMessage
    | ContextReset
    | ResultsShortened
    | LaneStarted
    | PersonActed
    | RunFinished,
    Field(discriminator="kind"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
