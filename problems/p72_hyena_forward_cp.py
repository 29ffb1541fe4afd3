"""Hyena operator on a sharded sequence: gate, long causal convolution by FFT, gate again.

Under context parallelism Evo 2 swaps "all channels of some positions" for "some channels of all positions", convolves
whole sequences, and swaps back.
"""

import torch
import torch.distributed as dist

from problems.spatial import fft_flops
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    x1_seq: torch.Tensor,
    x2_seq: torch.Tensor,
    v_seq: torch.Tensor,
    h: torch.Tensor,
    conv_bias: torch.Tensor,
    num_groups: int,
    group_dim: int,
    group: dist.ProcessGroup | None = None,
    with_zigzag_splitting: bool = True,
) -> torch.Tensor:
    """Rank r of W holds S positions of all C channels; the global sequence has T = W*S positions.

    x1_seq, x2_seq, v_seq: (B, C, S). With zigzag splitting the sequence is cut into 2W equal chunks, and a rank's last
        axis is chunk r followed by chunk 2W-1-r; otherwise it is positions r*S to (r+1)*S.
    h: (num_groups, K), the same on all ranks; channel c's filter is row c // group_dim. K may be less than T (zeros
        follow) or more (taps from 2T on are dropped; those before wrap around in a transform of length 2T).
    conv_bias: (C,), the same on all ranks.
    num_groups, group_dim: C == num_groups * group_dim; W divides num_groups.
    All tensors have one dtype. In global positions t, with z = x2 * v rounded to that dtype:
    y[t] = sum over j <= t of filter[j] * z[t - j], plus z[t] * conv_bias[c], in float32 at least, rounded to the dtype.
    Result: x1 * y as (B, S, C) in that dtype, contiguous, positions in the rank's own layout.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    batch, channels, _ = x1_seq.shape
    own_channels, own_groups = channels // world_size, num_groups // world_size
    wide = torch.promote_types(x1_seq.dtype, torch.float32)

    def to_natural(parts: torch.Tensor) -> torch.Tensor:
        """(..., W, S), the last axis in the layout of rank W, to (..., T)."""
        if not with_zigzag_splitting:
            return parts.flatten(-2)
        early, late = parts.chunk(2, dim=-1)
        return torch.cat([early.flatten(-2), late.flip(-2).flatten(-2)], dim=-1)

    def to_layout(sequence: torch.Tensor) -> torch.Tensor:
        """The way back."""
        if not with_zigzag_splitting:
            return sequence.unflatten(-1, (world_size, -1))
        early, late = sequence.chunk(2, dim=-1)
        early, late = early.unflatten(-1, (world_size, -1)), late.unflatten(-1, (world_size, -1)).flip(-2)
        return torch.cat([early, late], dim=-1)

    # One exchange for all three: (W, 3, B, C/W, S), first by receiver, then by sender.
    sent = torch.stack([x1_seq, x2_seq, v_seq]).unflatten(2, (world_size, own_channels))
    sent = sent.movedim(2, 0).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    x1, x2, v = to_natural(received.movedim(0, -2))

    z = (x2 * v).to(wide)
    length = 2 * z.shape[-1]
    filters = torch.fft.rfft(h[rank * own_groups : (rank + 1) * own_groups].to(wide), n=length)
    spectrum = torch.fft.rfft(z, n=length) * filters.repeat_interleave(group_dim, dim=0)
    y = torch.fft.irfft(spectrum, n=length)[..., : z.shape[-1]]
    bias = conv_bias[rank * own_channels : (rank + 1) * own_channels, None].to(wide)
    out = x1 * (y + z * bias).to(x1.dtype)

    sent = to_layout(out).movedim(-2, 0).contiguous()  # (W, B, C/W, S)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received.permute(1, 3, 0, 2).reshape(batch, -1, channels).contiguous()


def _channels(case: Case, world_size: int) -> tuple[int, int]:
    """Groups, and channels of each."""
    groups = case["groups"] if "groups" in case.sizes else case["groups_per_rank"] * world_size
    return groups, case["group_dim"]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    groups, group_dim = _channels(case, ctx.world_size)
    channels, taps, common = groups * group_dim, case["taps"], ctx.shared()
    x1, x2, v = (ctx.randn(case["b"], channels, case["s"]) for _ in range(3))
    if case.name == "pkb":
        h = torch.arange(groups * taps, device=ctx.device, dtype=torch.float64).reshape(groups, taps) / taps
        bias = torch.arange(channels, device=ctx.device, dtype=torch.float64) / channels
        return x1, x2, v, h.to(ctx.dtype), bias.to(ctx.dtype), groups, group_dim, None, True
    # Filters of norm one that fade over 1/32 to all of their length, as learned ones do; a bias that counts.
    fading = taps * 2 ** common.uniform(groups, 1, low=-5, high=0, dtype=torch.float32)
    envelope = torch.exp(-torch.arange(taps, device=fading.device) / fading)
    h = common.randn(groups, taps, dtype=torch.float32) * envelope / envelope.norm(dim=1, keepdim=True)
    # Published with zigzag splitting; elsewhere either.
    zigzag = case.name in ("default", "large") or common.integer(0, 2) == 1
    return x1, x2, v, h.to(ctx.dtype), common.randn(channels), groups, group_dim, None, zigzag


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    groups, group_dim = _channels(case, world_size)
    channels, b, s, taps = groups * group_dim, case["b"], case["s"], case["taps"]
    total = s * world_size
    # Gates can be applied where the sequence lies, and a convolution cut into blocks. What cannot be avoided: some rank
    # owns a chunk, of S/2 positions with zigzag, whose results depend on all of the chunk before it.
    link = b * channels * min(s // 2, taps - 1) * element_bytes if world_size > 1 else 0
    return Work(
        # There and back in transforms as long as the filter or the sequence, whichever is shorter.
        flops=2 * fft_flops(b * channels * s, min(taps, total)),
        hbm_bytes=(4 * b * channels * s + (groups * taps + channels) / world_size) * element_bytes,
        link_out_bytes=link,
        link_in_bytes=link,
    )


def illegal(case: Case, world_size: int) -> str | None:
    groups, _ = _channels(case, world_size)
    return f"{groups} groups do not divide evenly over {world_size} ranks" if groups % world_size else None


PROBLEM = Problem(
    title="Hyena long convolution under context parallelism",
    family="context",
    source="Savanna",
    tags=("fft", "all_to_all"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"b": 1, "s": 2048, "groups": 1024, "group_dim": 1, "taps": 4096},
        # As published, with filters that fade and a bias that counts.
        "default": {"b": 1, "s": 2048, "groups": 1024, "group_dim": 1, "taps": 4096},
        # Evo 2 7B (4096 channels in 256 groups), a context of 128k positions on 8 ranks.
        "large": {"b": 1, "s": 16384, "groups": 256, "group_dim": 16, "taps": 8192},
        "odd": {"b": 2, "s": 58, "groups_per_rank": 3, "group_dim": 5, "taps": 101},
        "tiny": {"b": 1, "s": 6, "groups_per_rank": 2, "group_dim": 2, "taps": 9},
    },
    tolerance="rounding",
    repair="Published filters are ramps that round to rows of constants up to 1024: running sums do, and the bias goes "
    "unseen. In `default` they are random, fade and have norm one; bias and filters differ in every trial.",
    illegal=illegal,
)
