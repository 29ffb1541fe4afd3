"""Everything that crosses a process, a disk or HTTP: frozen pydantic models, units in the names. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

PlatformName = Literal["cpu", "cuda"]
Check = Literal["oracle", "pkb"]
Protocol = Literal["ringsmith", "pkb"]
DType = Literal["bfloat16", "float16", "float32", "float64"]
CollectivesRule = Literal["allow", "refuse"]
Mechanism = Literal["NCCL", "copy engine", "TMA", "SM loads and stores", "NVLS", "shared memory", "gloo"]
"""What moves data between ranks."""
FloorSource = Literal["datasheet", "calibration"]
IsolationLevel = Literal["auto", "strict", "none"]
"""How untrusted ranks are confined: as far as this machine can, in every way that there is, not at all."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")


class Backend(StrEnum):
    """What a candidate is written in; `reference` is the PyTorch + NCCL baseline itself, evaluated as a candidate."""

    cuda = "cuda"
    triton = "triton"
    parallelkittens = "parallelkittens"
    cpp = "cpp"
    reference = "reference"


BACKENDS: dict[PlatformName, tuple[Backend, ...]] = {
    "cpu": (Backend.cpp, Backend.reference),
    "cuda": (Backend.cuda, Backend.triton, Backend.parallelkittens, Backend.reference),
}
"""What each platform can run; its default first."""
MECHANISMS: dict[PlatformName, tuple[Mechanism, ...]] = {
    "cpu": ("shared memory", "gloo"),
    "cuda": ("SM loads and stores", "copy engine", "TMA", "NCCL"),
}
"""What candidates may move data by on each platform; what the references use last. (NVLS is forbidden.)"""


class Candidate(Frozen):
    """The model's code: one Python module with `solution(*args)`."""

    source: str
    backend: Backend

    @property
    def hash(self) -> str:
        """Content hash, 16 hexadecimal digits; names the candidate everywhere."""
        return hashlib.sha256(f"{self.backend}\0{self.source}".encode()).hexdigest()[:16]


class Verdict(StrEnum):
    """How an evaluation ended. Closed: a fault of the harness is an exception, never a member of this list."""

    passed = "passed"
    compile_error = "compile_error"
    api_error = "api_error"
    """A name, attribute, import or call signature that does not exist."""
    shape_error = "shape_error"
    """Output of the wrong structure, type, shape, dtype or device."""
    runtime_error = "runtime_error"
    out_of_memory = "out_of_memory"
    wrong_values = "wrong_values"
    race = "race"
    """Right when undisturbed, wrong under skew or from call to call."""
    deadlock = "deadlock"
    """Ranks wait for something that never comes."""
    timeout = "timeout"
    """Still working, or looping by itself, at the deadline."""
    integrity = "integrity"
    policy = "policy"
    """Uses a feature that this host forbids."""


class Stage(StrEnum):
    """Stages of an evaluation, in order; each stops at the first failure."""

    policy = "policy"
    build = "build"
    load = "load"
    correctness = "correctness"
    stress = "stress"
    timing = "timing"


class Limits(Frozen):
    """Deadlines in seconds. A stage's clock restarts whenever a rank makes progress."""

    build_s: float = 300.0
    """Compilation, in the build stage or (for candidates that compile on their first call) in a rank."""
    load_s: float = 30.0
    """Importing the candidate, compilation not counted."""
    first_call_s: float = 10.0
    """The first call of up to four ranks (of more: `seconds_of_first_call`): lazy initialisation and symmetric-memory
    rendezvous included, compilation not counted."""
    call_s: float = 10.0
    """Any later call, and any block of timed calls beyond ten times its expected length."""
    evaluation_s: float = 300.0
    """All that a candidate's ranks are asked in an evaluation, compilation not counted; with `soak` so many times as
    much."""
    start_s: float = 120.0
    """Bringing up processes, contexts and process groups; passing it is a HarnessError."""

    def seconds_of_first_call(self, world_size: int) -> float:
        """Seconds for the first call of so many ranks. More than four get more: NCCL connects each with each, which
        takes the first all-to-all of eight GPUs 4 s a communicator."""
        return self.first_call_s * max(1.0, world_size / 4)


class Request(Frozen):
    """One evaluation to make."""

    candidate: Candidate
    problem: int
    suite: str = ""
    """Whose problem (`problems.suites`): a path, or "" for ours."""
    case: str = ""
    """"": the problem's default."""
    platform: PlatformName
    world_size: int = Field(ge=1, le=64)
    dtype: DType
    protocol: Protocol = "ringsmith"
    check: Check = "oracle"
    trials: int = Field(default=3, ge=1, le=100)
    """Correctness trials, each on fresh secret inputs."""
    soak: int = Field(default=1, ge=1, le=1000)
    """How often correctness and stress are gone through, in the same processes: shows what goes wrong only rarely."""
    timing: bool = True
    collectives: CollectivesRule = "allow"
    """Whether `solution` may call the collectives of torch.distributed (NCCL, gloo). If it may, the Evaluation still
    says so."""
    limits: Limits = Limits()


class Difference(Frozen):
    """One wrong element."""

    index: tuple[int, ...]
    got: float
    expected: float


class Mismatch(Frozen):
    """How one output tensor of one rank differs from what is right."""

    trial: int
    output: str
    """`out`, or a path into a nested result such as `out[1]`."""
    shape: tuple[int, ...]
    wrong: int
    """Elements outside the bound."""
    total: int
    nonfinite: int
    """NaN or infinite elements where finite ones were right."""
    max_error: float
    max_allowed: float
    rms_error: float
    rms_allowed: float
    rows_wrong: int = 0
    """Rows out of bounds where no single element of the tensor is; the figures are then the worst row's."""
    first: tuple[Difference, ...] = ()
    chunks_wrong: tuple[float, ...] = ()
    """Fraction of wrong elements in each of world_size equal chunks along the first axis."""


class Finding(Frozen):
    """One statement on why a candidate failed."""

    cause: str
    """What kind of mistake, in two or three words that tables can count: `never written`, `rank left out`, `stale`."""
    text: str
    """What was found, in one sentence that names ranks, regions, lines."""
    evidence: str = ""
    """What it was concluded from: figures, a probe, the compiler's line."""
    certain: bool = True
    """Shown by the evidence. False: inferred, and something else may look the same."""


class RankReport(Frozen):
    """What one rank of the candidate did."""

    rank: int
    ok: bool
    stage: Stage
    calls_completed: int = 0
    message: str = ""
    """The rank's error in one line; empty if it had none of its own."""
    line: int | None = None
    """Line of the candidate's source that the rank was at."""
    stack: str = ""
    """Python stack at the error or at the deadline, innermost call last."""
    exit: str = ""
    """How the process ended, if it did: `exit 1`, `SIGSEGV`."""
    mismatches: tuple[Mismatch, ...] = ()
    stderr: str = ""
    """End of what the rank printed."""


class Latency(Frozen):
    """Distribution over samples; a sample is the slowest rank's time of one call (`Timing.calls` calls averaged)."""

    median_us: float
    p10_us: float
    p90_us: float
    min_us: float
    samples: int
    skew_us: float
    """Median over samples of (slowest rank - fastest rank)."""
    host_us: float | None = None
    """What the slowest rank's host needs to issue one call, median. Above `median_us`, a loop of such calls in Python
    is bound by the host. None where issuing and running are the same, and of CUDA graphs unless each call is one of
    its own."""


class Ratio(Frozen):
    """reference / candidate, with a 95% interval: bootstrap over blocks and samples, widened by what two sets of
    processes that run the same code differ by."""

    value: float
    low: float
    high: float


class Clocks(Frozen):
    """What NVML said of the leased devices while blocks ran."""

    sm_mhz_low: int
    sm_mhz_high: int
    slowdowns: tuple[str, ...] = ()
    """Reasons other than idling for which a clock was held down, such as `power cap` or `thermal`."""
    repeated_blocks: int = 0
    """Blocks that were thrown away and timed again because of a thermal or hardware slowdown."""


class Timing(Frozen):
    """Candidate and reference timed in alternation under the same conditions."""

    candidate: Latency
    reference: Latency
    speedup: Ratio
    calls: int = 1
    """Calls back to back in one sample."""
    blocks: int = 0
    """Timed blocks of each side."""
    clocks: Clocks | None = None
    """None where there is no NVML."""
    audited: int = 0
    """Outputs of timed calls, chosen at random, that were compared in full on all ranks."""
    outside_us: float | None = None
    """One call by the supervisor's own clock: longer blocks against shorter ones. None where it was not looked at."""
    reference_slowed: float | None = None
    """How much slower the reference was beside the candidate than without it, if that was more than noise: its time
    without the candidate then is what counts."""


class Measurement(Frozen):
    """Latency of a candidate that passed."""

    protocol: Protocol
    eager: Timing
    """As called from Python, call by call, the host running ahead of the device (`protocol` pkb: not ahead)."""
    device: Timing | None = None
    """Without launches: CUDA-graph replay. None where it cannot be had; `device_note` says why."""
    device_note: str = ""
    sol_us: float | None = None
    """Roofline floor that no time may beat; None where this machine's peaks are unknown."""
    bound_by: str = ""
    """What binds the floor: `link in`, `link out`, `HBM`, `FLOPs`."""
    sol_from: FloorSource = "datasheet"
    """Whose peaks the floor is made of; `calibration` where there is no datasheet."""
    achievable_us: float | None = None
    """The same work at the rates that `ringsmith doctor --calibrate` measured on this machine, not a strict bound: None
    if it never ran here."""
    achievable_bound_by: str = ""
    """As `bound_by`, or `latency`."""

    @property
    def sol_fraction(self) -> float | None:
        """How much of the floor is reached, from the best latency known."""
        return self._fraction(self.sol_us)

    @property
    def achievable_fraction(self) -> float | None:
        """How much is reached of what measured rates allow, from the best latency known."""
        return self._fraction(self.achievable_us)

    def _fraction(self, least_us: float | None) -> float | None:
        timing = self.device or self.eager
        return least_us / timing.candidate.median_us if least_us else None


class Environment(Frozen):
    """Where an evaluation ran."""

    platform: PlatformName
    devices: tuple[str, ...]
    driver: str = ""
    cuda: str = ""
    torch: str
    python: str
    harness: str
    """Version of Ringsmith."""
    isolation: tuple[str, ...]
    """Layers that were on."""


class Evaluation(Frozen):
    """candidate x problem x case x world_size -> verdict."""

    candidate: str
    """Hash of the candidate."""
    backend: Backend
    problem: int
    suite: str = ""
    """Whose problem; "" for ours."""
    name: str
    """Name of the problem."""
    case: str
    sizes: dict[str, int]
    world_size: int
    dtype: DType
    check: Check
    trials: int
    verdict: Verdict
    stage: Stage
    """Where it ended: the stage that failed, or the last one."""
    summary: str
    """The verdict's reason in one line."""
    ranks: tuple[RankReport, ...] = ()
    measurement: Measurement | None = None
    uses_nccl: bool = False
    """Whether `solution` was seen to call, or its text names, collectives of torch.distributed or NCCL."""
    mechanisms: tuple[Mechanism, ...] = ()
    """What moves its data between ranks, as its text and `uses_nccl` say; empty where that cannot be told, or it did
    not build. (A profile says what was measured.)"""
    log: str = ""
    """Compiler output or other text that is not a rank's."""
    findings: tuple[Finding, ...] = ()
    """Why it failed, most telling first; empty if it passed or nothing could be found out."""
    stage_s: dict[str, float] = Field(default_factory=dict)
    """Seconds spent in each stage; `start` is what comes before the first, waiting for the session's processes,
    `diagnosis` finding out why an output was wrong, and `cleanup` what comes after the last: killing the candidate's
    ranks and looking after the devices."""
    device_s: float = 0.0
    """Seconds x devices under lease."""
    waited_s: float = 0.0
    """Seconds in which the evaluation waited for devices that others had; of `stage_s`, they are in `load`."""
    fault: str = ""
    """What ended a first attempt that was not the candidate's doing, so that this is the second; "" if nothing did.
    `device_s` and `waited_s` are of both, `stage_s` of this one."""
    environment: Environment

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.passed

    @model_validator(mode="after")
    def _measured_only_if_passed(self) -> Self:
        if self.measurement is not None and not self.passed:
            raise ValueError("a measurement exists only for a candidate that passed")
        return self


class BuildReport(Frozen):
    """Result of the build stage alone: no device, no ranks."""

    candidate: str
    verdict: Verdict | None
    """None if it built; otherwise policy, compile_error, api_error or timeout."""
    summary: str
    log: str = ""
    findings: tuple[Finding, ...] = ()
    """Why it failed, most telling first."""
    built: tuple[str, ...] = ()
    """Names of the libraries and extensions that were compiled or found in the cache."""
    build_s: float = 0.0


class Topology(Frozen):
    """This machine as measured: what a prompt says about it."""

    platform: PlatformName
    devices: tuple[str, ...]
    summary: str
    """A few lines of text: devices, links, measured bandwidths, compiler."""
    figures: dict[str, float] = Field(default_factory=dict)


def to_json(value: BaseModel) -> dict[str, Any]:
    """Dict of a model that is strict JSON: NaN and infinity become the strings `NaN` and `Infinity`."""
    return json.loads(value.model_dump_json())
