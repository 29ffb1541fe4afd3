"""The planted faults. What `names` demands is the substance: who or what region, and what is wrong with it."""

from __future__ import annotations

from harness.types import Verdict
from tests.faults.fault import Fault, Kind, every

_WRONG_OR_RACE = (Verdict.wrong_values, Verdict.race)
_LEFT_OUT = r"left out|missing|not added|not included|lacks|without|never added|omit|leaves out"
_TWICE = r"twice|two times|added 2|counted 2|doubled|2 ?x|2 times|double-counted"
_NEVER_WRITTEN = r"never written|not written|unwritten|uninitiali[sz]ed|left as (it|they) (was|were)"
_ZEROS = r"zero|never written|not written|unwritten|empty"
_TOO_EARLY = (
    r"\bstale|too early|not yet|call before|(former|previous|earlier|last|older|first) call"
    r"|(before|not been|until|without waiting)[^.]{0,40} (written|wrote|published|arrived|summed|there)"
    r"|not been written|ha(s|ve|d) not written"
)
"""A rank reads what has not been written yet: what it gets is of an earlier call, or the zeros of the beginning."""
_TOO_LATE = (
    r"overwrit|overtak|(next|later|newer|following) call|call (after|ahead)|still (being )?read"
    r"|(exit|second) barrier|barrier (after|at the (end|exit))"
)
"""A rank writes what others still read: what they get is of a later call."""
_AVERAGED = every(
    r"\bmean\b|averag|1/<world>\b|\b0?\.(25|5)0*\b|divided by|too small by|<world>(\.0+)? times too small"
)
_NOT_AVERAGED = (
    r"not (divided|averaged)|\bsum[^.]*(mean|averag)|(times|factor( of)?|too large by) ?<world>\b"
    r"|\b<world>(\.0+)? ?(times|x|×)|number of ranks|world size"
)
_REVERSED = (
    r"revers|backward|mirrored|permut|order of (the )?(ranks|slices|slots|blocks|sources)"
    r"|(slot|slice|block|chunk) 0[^.]*rank <last>|rank <last>'s[^.]*(slot|slice|block|chunk) 0"
)
_NEXT_BLOCK = every(
    r"block|rows|chunk|shard|slice",
    r"next rank|off by one|shifted|rotat|neighbou?r|rank \d+'s (row )?(block|rows|chunk|shard)|meant for|belongs to",
)
_NEXT_SLOT = every(
    r"rank \d+'s|slot|block|chunk", r"off by one|shifted|rotat|next|neighbou?r|instead|in place of|belongs|by 1\b"
)
_BF16 = r"bf16|bfloat16|\b[78][- ]bits?\b|mantissa|16[- ]bit"

_ONESHOT = "p01_allreduce_oneshot.py"
_RING = "p01_allreduce_ring.py"
_GATHER = "p02_allgather_push.py"
_BROADCAST = "p03_broadcast_flags.py"
_SCATTER = "p07_reducescatter_pull.py"
_ALLTOALL = "p08_alltoall_pull.py"
_GEMM_SUM = "p13_gemm_allreduce_twoshot.py"
_GEMM_SCATTER = "p16_gemm_reducescatter_push.py"
_NORM = "p18_tp_rms_norm_fused.py"
_MOE = "p27_moe_all2all_pull.py"
_ZERO = "p41_zero1_step.py"
_ADAM = "p43_adam_allgather.py"
_MEAN_NORM = "p45_reducescatter_rmsnorm.py"
_RING_ATTENTION = "p54_ring_attention_p2p.py"
_FFT = "p59_rfft_transpose.py"
_ENTROPY = "p73_vocab_cross_entropy.py"
_HALO = "p87_conv_halo.py"

_CPU = (
    # ------------------------------------------------------------------------------------------- sums: who is in them
    Fault(
        "p01_last_rank_left_out",
        _ONESHOT,
        (("    for r in range(world):\n", "    for r in range(world - 1):\n"),),
        "wrong_values",
        "Rank <last>'s contribution is left out of the sum.",
        every(r"rank <last>\b", _LEFT_OUT),
    ),
    Fault(
        "p01_own_added_twice",
        _ONESHOT,
        (("    total = torch.zeros(tensor.shape, dtype=wide)\n", "    total = tensor.to(wide).clone()\n"),),
        "wrong_values",
        "Each rank adds its own matrix twice.",
        every(r"\bown\b|itself|rank r's|that rank's|its input", _TWICE),
    ),
    Fault(
        "p01_mean_for_sum",
        _ONESHOT,
        (("    return total.to(tensor.dtype)\n", "    return (total / world).to(tensor.dtype)\n"),),
        "wrong_values",
        "The mean over ranks is returned where the sum belongs.",
        _AVERAGED,
    ),
    Fault(
        "p07_first_rank_left_out",
        _SCATTER,
        (
            (
                "        total += buf.peer(peer)[mine].to(wide)\n",
                "        if peer > 0:\n            total += buf.peer(peer)[mine].to(wide)\n",
            ),
        ),
        "wrong_values",
        "Rank 0's contribution is left out of every block.",
        every(r"rank 0\b", _LEFT_OUT),
    ),
    Fault(
        "p16_one_sender_left_out",
        _GEMM_SCATTER,
        (("    out = slots.local.sum(0).to(dtype)\n", "    out = slots.local[1:].sum(0).to(dtype)\n"),),
        "wrong_values",
        "Rank 0's product (its slot) is left out of the sum.",
        every(r"rank 0\b", _LEFT_OUT),
    ),
    Fault(
        "p13_own_product_for_every_peer",
        _GEMM_SUM,
        (("        block += partial.peer(r)[begin:end]\n", "        block += partial.local[begin:end]\n"),),
        "wrong_values",
        "Each rank adds its own product once for every rank instead of the peers' products.",
        every(
            r"\bown\b|local|itself|rank \d's part \d times",
            r"times|every (rank|peer)|instead|in place of|no (effect|influence)|peers?'? .*missing",
        ),
    ),
    Fault(
        "p45_sum_for_mean",
        _MEAN_NORM,
        (("    rows = (total / world).view(-1, hidden)\n", "    rows = total.view(-1, hidden)\n"),),
        "wrong_values",
        "The division by the number of ranks is forgotten: the sum is normalised instead of the mean.",
        _NOT_AVERAGED,
    ),
    Fault(
        "p41_gradient_not_averaged",
        _ZERO,
        (("    grad /= world\n", ""),),
        "wrong_values",
        "Gradients are summed and not divided by the number of ranks.",
        _NOT_AVERAGED,
    ),
    # -------------------------------------------------------------------------------------------------- who and where
    Fault(
        "p02_own_data_in_every_slot",
        _GATHER,
        (
            (
                "        std::memcpy(out + source * bytes, arrived, bytes);\n",
                "        std::memcpy(out + source * bytes, in, bytes);\n",
            ),
        ),
        "wrong_values",
        "Each rank's own matrix stands in every slot.",
        every(r"\bown\b|rank \d's (own )?(data|matrix|input|tensor)", r"slot|out\[|every|all|instead|where|belongs"),
    ),
    Fault(
        "p02_neighbours_slot",
        _GATHER,
        (
            (
                "        char* slot = buffers[peer] + half + rank * bytes;\n",
                "        char* slot = buffers[peer] + half + (rank + 1) % world * bytes;\n",
            ),
        ),
        "wrong_values",
        "Slots are off by one: rank r's matrix stands in slot r + 1.",
        _NEXT_SLOT,
    ),
    Fault(
        "p08_own_slice_for_the_peers",
        _ALLTOALL,
        (
            (
                "        const char* from = buffers[peer] + rank * slice_bytes;\n",
                "        const char* from = buffers[rank] + peer * slice_bytes;\n",
            ),
        ),
        "wrong_values",
        "The own stack is returned as it was: nothing is exchanged.",
        every(
            r"\bown\b|unchanged|input|as it was|itself",
            r"unchanged|returned as|exchanged|instead|in place of|belongs|peers?'? .*(missing|left out)",
        ),
    ),
    Fault(
        "p08_slices_in_reverse",
        _ALLTOALL,
        (
            (
                "        std::memcpy(out + peer * slice_bytes, from, slice_bytes);\n",
                "        std::memcpy(out + (world - 1 - peer) * slice_bytes, from, slice_bytes);\n",
            ),
        ),
        "wrong_values",
        "The slices arrive in reverse order of ranks.",
        _REVERSED,
    ),
    Fault(
        "p07_block_of_the_next_rank",
        _SCATTER,
        (
            (
                "    mine = slice(rank * rows, (rank + 1) * rows)\n",
                "    mine = slice((rank + 1) % world * rows, ((rank + 1) % world + 1) * rows)\n",
            ),
        ),
        "wrong_values",
        "Each rank returns the next rank's row block.",
        _NEXT_BLOCK,
    ),
    Fault(
        "p03_root_is_always_zero",
        _BROADCAST,
        (
            (
                "def solution(tensor, src=0):\n    tensor = tensor.contiguous()\n",
                "def solution(tensor, src=0):\n    src = 0\n    tensor = tensor.contiguous()\n",
            ),
        ),
        "wrong_values",
        "Rank 0 is always taken for the root, whatever src says.",
        every(r"rank 0\b", r"instead|where|not|belongs|src|root"),
    ),
    Fault(
        "p27_offsets_from_the_wrong_end",
        _MOE,
        (("        begin, count = sum(theirs[:rank])", "        begin, count = sum(theirs[rank + 1 :])"),),
        "wrong_values",
        "A sender's offset adds up the splits after the own one instead of those before it.",
        every(r"offset|displaced|shifted|(other|wrong) rows|elsewhere|another place|splits"),
    ),
    Fault(
        "p27_sources_in_reverse",
        _MOE,
        (("    for source in range(world):\n", "    for source in reversed(range(world)):\n"),),
        "wrong_values",
        "What arrives is put together in reverse order of ranks.",
        _REVERSED,
    ),
    Fault(
        "p59_halves_swapped",
        _FFT,
        (
            (
                "        lines[:, :, r * width : (r + 1) * width] = ",
                "        at = (r + world // 2) % world\n        lines[:, :, at * width : (at + 1) * width] = ",
            ),
        ),
        "wrong_values",
        "The first and the second half of the ranks' columns are swapped before the second transform.",
        every(
            r"swapp|order of|permut|shift|rotat|phase|revers|\bsign|negat|odd (columns|freq)|every (second|other|2nd)"
        ),
    ),
    Fault(
        "p59_rows_of_every_peer_are_rank_zeros",
        _FFT,
        (
            (
                "torch.view_as_complex(buf.peer(r)[:, mine].contiguous())",
                "torch.view_as_complex(buf.peer(0)[:, mine].contiguous())",
            ),
        ),
        "wrong_values",
        "Rank 0's columns are taken for those of every rank.",
        every(
            r"rank 0's|rank [1-9]",
            r"taken for|instead|in place of|for (all|every)|no (effect|influence)|left out|not used|ignored|missing",
        ),
    ),
    Fault(
        "p87_halos_swapped",
        _HALO,
        (
            ("halo.peer(rank - 1)[1]\n", "halo.peer(rank - 1)[0]\n"),
            ("halo.peer(rank + 1)[0]\n", "halo.peer(rank + 1)[1]\n"),
        ),
        "wrong_values",
        "The neighbours' far rows are taken for their near ones: first and last rows are mixed up.",
        every(
            r"first|last|edge|border|boundar|top|bottom|rows?\b",
            r"halo|neighbou?r|boundar|border|edge|swapp|mixed up|first and (the )?last",
        ),
    ),
    Fault(
        "p87_image_wraps_around",
        _HALO,
        (
            (
                "    if rank > 0:\n        padded[:, :, :padding] = halo.peer(rank - 1)[1]\n",
                "    if True:\n        padded[:, :, :padding] = halo.peer((rank - 1) % world)[1]\n",
            ),
        ),
        "wrong_values",
        "Above the first piece the last rank's rows are taken instead of zeros.",
        every(r"rank 0\b|first piece", r"row|top|edge|bound|halo|rank <last>"),
    ),
    # ---------------------------------------------------------------------------------------------- regions not written
    Fault(
        "p13_tail_rows_never_written",
        _GEMM_SUM,
        (("    rows = -(-m // world)  # the last blocks may be shorter, or empty\n", "    rows = m // world\n"),),
        "wrong_values",
        "Rows beyond a multiple of the number of ranks are never written: the result is torch.empty.",
        every(_NEVER_WRITTEN, r"row|last|tail|end"),
        case="odd",
    ),
    Fault(
        "p01_ring_misses_last_step",
        _RING,
        (
            (
                "    for (int s = 0; s < world - 1; ++s) {\n        const int slot = world - 1 + s;\n",
                "    for (int s = 0; s < world - 2; ++s) {\n        const int slot = world - 1 + s;\n",
            ),
        ),
        "wrong_values",
        "The all-gather of the ring stops one step early: one chunk is never written on each rank.",
        every(_NEVER_WRITTEN + "|" + _ZEROS, r"chunk|block|shard|row|element|quarter|region|part|slot"),
    ),
    Fault(
        "p02_tail_bytes_not_copied",
        _GATHER,
        (("        std::memcpy(slot, in, bytes);\n", "        std::memcpy(slot, in, bytes / 128 * 128);\n"),),
        "wrong_values",
        "The last bytes of each matrix that do not fill 128 are not copied and stay zero.",
        every(_ZEROS, r"last|tail|end|final"),
    ),
    Fault(
        "p07_last_row_left_zero",
        _SCATTER,
        (
            (
                "        total += buf.peer(peer)[mine].to(wide)\n",
                "        total[:-1] += buf.peer(peer)[mine][:-1].to(wide)\n",
            ),
        ),
        "wrong_values",
        "The last row of the block is never added and stays zero.",
        every(_ZEROS, r"last row|final row|row 13|rows? .*13|tail|end"),
    ),
    Fault(
        "p18_every_fourth_row_not_written",
        _NORM,
        (
            (
                "    for (int64_t i = 0; i < rows; ++i) {\n        rs_sum<T> total = 0;\n",
                "    for (int64_t i = 0; i < rows; i += i % 4 == 2 ? 2 : 1) {\n        rs_sum<T> total = 0;\n",
            ),
        ),
        "wrong_values",
        "Every fourth row of the result is never written.",
        every(_NEVER_WRITTEN + "|zero", r"every (4th|fourth)|every 4|stride|period|each 4th|step of 4|rows 3, 7"),
    ),
    Fault(
        "p43_shards_not_gathered",
        _ADAM,
        (
            (
                "    all_gather(gathered, updated)\n",
                "    gathered.zero_()\n    part, rank = updated.numel(), dist.get_rank()\n"
                "    gathered[rank * part : (rank + 1) * part] = updated\n",
            ),
        ),
        "wrong_values",
        "Only the own shard is written, the other ranks' shards stay zero.",
        every(_ZEROS, r"other|rank|shard|chunk|block|elements"),
    ),
    Fault(
        "p16_tile_transposed",
        _GEMM_SCATTER,
        (
            (
                "        slots.peer(owner)[rank] = a @ b\n",
                "        tile = a @ b\n        side = min(tile.shape)\n"
                "        tile[:side, :side] = tile[:side, :side].T.clone()\n        slots.peer(owner)[rank] = tile\n",
            ),
        ),
        "wrong_values",
        "The first square tile of each product is transposed.",
        every(r"transpos"),
    ),
    # ------------------------------------------------------------------------------------------------------- arithmetic
    Fault(
        "p01_bf16_on_the_wire",
        _ONESHOT,
        (
            (
                "        _buffers[key] = kit.symmetric(tensor.shape, tensor.dtype)\n",
                "        _buffers[key] = kit.symmetric(tensor.shape, torch.bfloat16)\n",
            ),
        ),
        "wrong_values",
        "Matrices cross as bfloat16, with 8 bits of precision, in a float32 problem.",
        _BF16,
    ),
    Fault(
        "p13_int8_on_the_wire",
        _GEMM_SUM,
        (
            (
                "        block += partial.peer(r)[begin:end]\n",
                "        piece = partial.peer(r)[begin:end]\n        step = piece.abs().max().clamp(min=1e-12) / 127 "
                "if piece.numel() else 1\n        block += (piece / step).round().clamp(-127, 127) * step\n",
            ),
        ),
        "wrong_values",
        "Products are quantised to eight bits before they are added.",
        every(r"int8|[87][- ]bits?\b|eight bits|quanti[sz]"),
    ),
    Fault(
        "p45_accumulates_in_bf16",
        _MEAN_NORM,
        (("    total = torch.zeros(block, dtype=wide)\n", "    total = torch.zeros(block, dtype=torch.bfloat16)\n"),),
        "wrong_values",
        "The sum over ranks is kept in bfloat16 in a float32 problem.",
        _BF16,
    ),
    Fault(
        "p54_scale_left_out",
        _RING_ATTENTION,
        (("    queries = q.transpose(1, 2).to(wide) * scale\n", "    queries = q.transpose(1, 2).to(wide)\n"),),
        "wrong_values",
        "The scores are not multiplied with softmax_scale.",
        every(r"softmax_scale|\bscal(e|ed|ing)\b|sqrt|temperature"),
        case="pkb",
    ),
    Fault(
        "p54_mask_off_by_one",
        _RING_ATTENTION,
        (("dtype=torch.bool).triu(1)\n", "dtype=torch.bool).triu(2)\n"),),
        "wrong_values",
        "The causal mask is off by one: each position also attends to the next one.",
        every(r"\bmask|causal|triang|(later|next|future) (one|position|token|key)"),
        case="pkb",
    ),
    Fault(
        "p54_blocks_not_rescaled",
        _RING_ATTENTION,
        (("            out = out * shrink + weights @ values\n", "            out = out + weights @ values\n"),),
        "wrong_values",
        "What was accumulated is not rescaled when the running maximum rises.",
        every(r"rescal|running max|maximum|renormal|normali[sz]|softmax|accumul"),
    ),
    Fault(
        "p54_nothing_to_begin_with",
        _RING_ATTENTION,
        (
            (
                "            peak = torch.maximum(top, scores.amax(-1, keepdim=True))\n",
                "            peak = torch.maximum(top, scores.amax(-1, keepdim=True)) if step else top\n",
            ),
        ),
        "wrong_values",
        "The running maximum begins as minus infinity and is used as such: -inf - -inf is NaN.",
        every(r"\bNaN|not[- ]a[- ]number|non-?finite"),
    ),
    Fault(
        "p73_maximum_not_subtracted",
        _ENTROPY,
        (("    shifted = logits - highest.unsqueeze(-1)\n", "    shifted = logits\n"),),
        "wrong_values",
        "The largest logit is not subtracted, so exp overflows.",
        every(r"\binf\b|infinit|overflow|non-?finite|NaN", r"overflow|exp\b|large|token|row|element"),
    ),
    Fault(
        "p73_targets_of_others_counted",
        _ENTROPY,
        (("    picked = torch.where(owned, picked, torch.zeros_like(picked))\n", ""),),
        "wrong_values",
        "Ranks that do not have the target's column add the logit of an edge column all the same.",
        every(r"target", r"rank|own|mask|column|other|shard|\badd"),
    ),
    Fault(
        "p73_local_maximum_only",
        _ENTROPY,
        (("    dist.all_reduce(highest, op=dist.ReduceOp.MAX)\n", ""),),
        "wrong_values",
        "Each rank subtracts its own shard's maximum instead of that of the whole vocabulary.",
        every(r"maxim|\bmax\b|largest|not reduced|own shard|\blocal"),
    ),
    Fault(
        "p73_sum_over_tokens",
        _ENTROPY,
        (
            (
                "    exponentials = shifted.exp().sum(dim=-1)\n",
                "    exponentials = shifted.exp().sum(dim=1)[:, :1].expand_as(picked)\n",
            ),
        ),
        "wrong_values",
        "The exponentials are summed over the tokens instead of over the vocabulary.",
        every(r"\baxis|\bdim|over the tokens|other tokens|same for (all|every)|constant (along|over)"),
    ),
    Fault(
        "p18_epsilon_left_out",
        _NORM,
        (("1 / std::sqrt(mean + (rs_sum<T>)eps)", "1 / std::sqrt(mean)"),),
        "wrong_values",
        "Epsilon is left out, so that a row of zeros becomes 0/0.",
        every(r"NaN|not[- ]a[- ]number|non-?finite|epsilon|\beps\b|division by zero|0/0"),
    ),
    Fault(
        "p18_divides_by_own_columns",
        _NORM,
        (("const rs_sum<T> mean = total / (columns * world);", "const rs_sum<T> mean = total / columns;"),),
        "wrong_values",
        "The sum of squares is divided by the number of the rank's own columns instead of all.",
        every(
            r"(factor|times|scaled?|ratio|divided) [^.]*(0\.5\b|1/2|half|sqrt|0\.7|<world>|own|local|number of ranks)"
        ),
    ),
    Fault(
        "p41_bias_correction_one_step_late",
        _ZERO,
        (("    v_hat = v / (1 - beta2**step)\n", "    v_hat = v / (1 - beta2 ** (step - 1))\n"),),
        "wrong_values",
        "The second moment's bias correction is that of the step before.",
        every(r"bias|step|factor|scale|ratio|times", r"out\[[0-3]\]|W1|parameters|bias correction|second moment"),
    ),
    Fault(
        "p41_own_parameters_on_every_rank",
        _ZERO,
        (
            ("    if rank == 0:\n        state.start.local", "    if True:\n        state.start.local"),
            ("state.start.peer(0)", "state.start.peer(rank)"),
        ),
        "wrong_values",
        "Each rank begins with its own parameters instead of rank 0's.",
        every(
            r"rank 0\b|src=0",
            r"instead|in place of|\bown\b|no (effect|influence)|not used|broadcast|root|ignored|left out",
        ),
    ),
    # ----------------------------------------------------------------------------------------------------------- races
    Fault(
        "p01_first_barrier_missing",
        _ONESHOT,
        (("    buf.barrier()  # all have published\n", ""),),
        "race",
        "The barrier between publishing and reading is missing: a rank reads what a late peer has not written.",
        _TOO_EARLY,
        expected=_WRONG_OR_RACE,
    ),
    Fault(
        "p08_exit_barrier_missing",
        _ALLTOALL,
        (("    rs_barrier(signals, rank, world, 0);  // all have read\n", ""),),
        "race",
        "The barrier after reading is missing: the next call overwrites what a slow peer still reads.",
        _TOO_LATE,
        expected=_WRONG_OR_RACE,
        case="odd",
    ),
    Fault(
        "p02_parity_always_zero",
        _GATHER,
        (
            (
                "    half = (_calls[nbytes] % 2) * world * nbytes\n",
                "    half = (_calls[nbytes] % 1) * world * nbytes\n",
            ),
        ),
        "race",
        "Both calls of a pair use the same half of the double buffer, and there is one barrier only.",
        _TOO_LATE + r"|double buffer|\bhalf",
        expected=_WRONG_OR_RACE,
        case="odd",
    ),
    Fault(
        "p03_flag_of_the_first_call",
        _BROADCAST,
        (
            (
                "        rs_wait(signals[rank] + READY + src, round);\n",
                "        rs_wait(signals[rank] + READY + src, 1);\n",
            ),
        ),
        "race",
        "A peer waits for the flag of the first call: in later calls it reads before the root has written.",
        _TOO_EARLY,
        expected=(*_WRONG_OR_RACE, Verdict.integrity),
    ),
    Fault(
        "p13_middle_barrier_missing",
        _GEMM_SUM,
        (("    summed.barrier()  # all blocks are summed\n", ""),),
        "race",
        "Blocks are copied from their owners without waiting until these have summed them.",
        _TOO_EARLY,
        expected=_WRONG_OR_RACE,
        case="odd",
    ),
    Fault(
        "p54_does_not_wait_for_the_block",
        _RING_ATTENTION,
        (("            for transfer in transfers:\n                transfer.wait()\n", ""),),
        "race",
        "The arriving block is used without waiting for its transfer.",
        _TOO_EARLY + r"|(not|never|without) wait|unwaited|" + _NEVER_WRITTEN,
        expected=(*_WRONG_OR_RACE, Verdict.runtime_error),
    ),
    Fault(
        "p07_returns_the_result_before",
        _SCATTER,
        (
            (
                "    return total.to(tensor.dtype)\n",
                "    former = _buffers.get(str(key), total)\n    _buffers[str(key)] = total\n"
                "    return former.to(tensor.dtype)\n",
            ),
        ),
        "wrong_values",
        "A call returns the result of the call before it.",
        _TOO_EARLY,
        expected=(*_WRONG_OR_RACE, Verdict.integrity),
    ),
    Fault(
        "p45_publishes_once",
        _MEAN_NORM,
        (
            (
                "        _buffers[key] = kit.symmetric((rs_input_1d.numel(),), rs_input_1d.dtype)\n",
                "        _buffers[key] = kit.symmetric((rs_input_1d.numel(),), rs_input_1d.dtype)\n"
                "        _buffers[key].local.copy_(rs_input_1d)\n",
            ),
            ("    buf.local.copy_(rs_input_1d)\n    buf.barrier()", "    buf.barrier()"),
        ),
        "wrong_values",
        "Inputs are published in the first call only: later calls work on the first call's.",
        _TOO_EARLY,
        expected=(*_WRONG_OR_RACE, Verdict.integrity),
    ),
    # ------------------------------------------------------------------------------------------------------- deadlocks
    Fault(
        "p87_last_rank_skips_a_barrier",
        _HALO,
        (
            (
                "    halo.barrier()  # all have read\n",
                "    if rank < world - 1:\n        halo.barrier()  # all have read\n",
            ),
        ),
        "deadlock",
        "Rank <last> skips the second barrier, at which the others wait for it.",
        every(r"rank <last>\b", r"barrier|line \d+|wait|skip|never|not enter"),
    ),
    Fault(
        "p01_ring_waits_for_the_next_round",
        _RING,
        (("        rs_wait(flags + s, round);\n", "        rs_wait(flags + s, round + 1);\n"),),
        "deadlock",
        "Every rank waits for a flag value that its neighbour raises in the next call only.",
        every(r"flag|rs_wait|ring_allreduce|line \d+|signal", r"wait|never|raised|reach|value"),
    ),
    Fault(
        "p03_root_forgets_the_last_peer",
        _BROADCAST,
        (
            (
                "        for (int r = 0; r < world; ++r)\n            if (r != src) rs_signal(",
                "        for (int r = 0; r < world - 1; ++r)\n            if (r != src) rs_signal(",
            ),
        ),
        "deadlock",
        "The root never raises rank <last>'s flag, and rank <last> waits for it.",
        every(r"rank <last>\b", r"wait|flag|never|signal|line \d+"),
    ),
    Fault(
        "p03_flag_never_raised_again",
        _BROADCAST,
        (
            (
                "        rs_signal(signals[src] + DONE + rank, round);\n",
                "        rs_signal(signals[src] + DONE + rank, 1);\n",
            ),
        ),
        "deadlock",
        "Peers say 1 in every call, so that the root waits for ever in its second call as root or later.",
        every(r"flag|rs_wait|broadcast|line \d+|signal|root", r"wait|never|raised|value|first call|call [1-9]"),
    ),
    Fault(
        "p54_sends_without_receiver",
        _RING_ATTENTION,
        (
            (
                "    receive = dist.P2POp(dist.irecv, arriving, (rank - 1) % world)\n",
                "    receive = dist.P2POp(dist.irecv, arriving, (rank + 1) % world)\n",
            ),
        ),
        "deadlock",
        "Every rank sends to the right and receives from the right: nobody receives what was sent.",
        every(r"recv|receiv|\bsen[dt]|transfer|p2p|isend", r"wait|match|never|nobody|no rank|peer|order"),
        expected=(Verdict.deadlock, Verdict.timeout),
        min_ranks=3,
    ),
    Fault(
        "p73_ranks_disagree_on_the_order",
        _ENTROPY,
        (
            (
                "    dist.all_reduce(highest, op=dist.ReduceOp.MAX)\n",
                "    if rank != 0:\n        dist.all_reduce(highest, op=dist.ReduceOp.MAX)\n",
            ),
            (
                "    return (sums[1]",
                "    if rank == 0:\n        dist.all_reduce(highest, op=dist.ReduceOp.MAX)\n    return (sums[1]",
            ),
        ),
        "deadlock",
        "Rank 0 makes its two all-reduces in the other order than the others: the collectives do not match.",
        every(r"\border|mismatch|not match|different (sizes|collectives|operations)|all.?reduce", r"rank \d|line \d+"),
        expected=(Verdict.deadlock, Verdict.runtime_error, Verdict.wrong_values),
    ),
    Fault(
        "p08_every_rank_at_its_own_barrier",
        _ALLTOALL,
        (
            (
                "    rs_barrier(signals, rank, world, 0);  // all have published\n",
                "    rs_barrier(signals, rank, world, rank);  // all have published\n",
            ),
        ),
        "deadlock",
        "Each rank passes its own number as the barrier's slot, so that no two ranks meet.",
        every(r"barrier|alltoall|line \d+", r"slot|meet|different|never|all ranks|every rank|each rank|wait"),
    ),
    Fault(
        "p41_one_rank_returns_early",
        _ZERO,
        (
            (
                "    grad /= world\n",
                "    grad /= world\n    if rank == 1:\n        return *_split(flat.to(dtype), weights), exp_avg_part, "
                "exp_avg_sq_part\n",
            ),
        ),
        "deadlock",
        "Rank 1 returns before the barrier at which the others wait.",
        every(r"rank 1\b", r"finish|return|left|barrier|never|not enter|wait|skip"),
    ),
    # ------------------------------------------------------------------------------- crashes, compilers and interfaces
    Fault(
        "p08_index_out_of_bounds",
        _ALLTOALL,
        (
            (
                "        std::memcpy(out + peer * slice_bytes, from, slice_bytes);\n",
                "        std::memcpy(out + peer * slice_bytes * 1000003, from, slice_bytes);\n",
            ),
        ),
        "runtime_error",
        "The library writes far outside of the output.",
        every(r"SIGSEGV|segmentation|out of bounds|outside|memory|crash", r"alltoall|line \d+|rank|library|C\+\+"),
    ),
    Fault(
        "p16_slots_one_too_few",
        _GEMM_SCATTER,
        (("kit.symmetric((world, rows, n), wide)", "kit.symmetric((world - 1, rows, n), wide)"),),
        "runtime_error",
        "There is one slot too few, so that rank <last>'s index is out of bounds.",
        every(r"index|out of bounds|out of range|size", r"rank <last>|line \d+|dimension|slots?"),
    ),
    Fault(
        "p13_shapes_do_not_fit",
        _GEMM_SUM,
        (
            (
                "    torch.mm(A_local.to(wide), B_local.to(wide), out=partial.local)\n",
                "    torch.mm(A_local.to(wide), B_local.T.to(wide), out=partial.local)\n",
            ),
        ),
        "runtime_error",
        "B_local is transposed, so that the shapes given to mm cannot be multiplied.",
        every(r"shape|cannot be multiplied|size", r"mm|line \d+|mat1|24|multipl"),
    ),
    Fault(
        "p18_missing_include",
        _NORM,
        (("#include <cmath>\n", "#include <cmat>\n"),),
        "compile_error",
        "A header that does not exist, cmat, is included.",
        every(r"\bcmat\b", r"no such file|not found|missing|does not exist"),
    ),
    Fault(
        "p01_undeclared_name",
        _RING,
        (
            (
                "        std::memcpy(inbox[right] + slot * chunk, out + begin(gone),",
                "        std::memcpy(inbox[rigth] + slot * chunk, out + begin(gone),",
            ),
        ),
        "compile_error",
        "A variable's name is misspelt in the C++ source: rigth is not declared.",
        every(r"rigth", r"declared|unknown|not known|misspel"),
    ),
    Fault(
        "p02_missing_header_of_the_kit",
        _GATHER,
        (('#include "ringsmith.h"\n', "#include <cstring>\n#include <cstdint>\n"),),
        "compile_error",
        "ringsmith.h is not included, so that rs_barrier is unknown.",
        every(r"rs_barrier", r"declared|include|ringsmith\.h|header|unknown"),
    ),
    Fault(
        "p07_invented_kit_function",
        _SCATTER,
        (("        _buffers[key] = kit.symmetric(", "        _buffers[key] = kit.shared_buffer("),),
        "api_error",
        "kit has no function shared_buffer.",
        every(r"shared_buffer", r"no attribute|does not exist|not exist|unknown|no function|has no"),
    ),
    Fault(
        "p87_invented_buffer_method",
        _HALO,
        (("    halo.barrier()  # all have published\n", "    halo.sync()  # all have published\n"),),
        "api_error",
        "A symmetric buffer has no method sync.",
        every(r"\bsync\b", r"no attribute|does not exist|not exist|unknown|no method|has no"),
    ),
    Fault(
        "p03_arguments_forgotten",
        _BROADCAST,
        (("size, number, src, kit.rank(), kit.world_size())", "size, src, kit.rank(), kit.world_size())"),),
        "api_error",
        "The library's function is called with one argument too few.",
        every(r"broadcast|argument", r"argument|takes|expect|missing"),
        expected=(Verdict.api_error, Verdict.runtime_error),
    ),
    Fault(
        "p08_tensor_for_a_number",
        _ALLTOALL,
        (("buf.ptrs, buf.signals, slice_bytes, kit.rank()", "buf.ptrs, buf.signals, tensor[0], kit.rank()"),),
        "api_error",
        "A tensor is passed where the C function takes a number.",
        every(r"slice_bytes|argument|tensor", r"number|int|type|expect|takes"),
        expected=(Verdict.api_error, Verdict.runtime_error),
    ),
)

_ONESHOT_CUDA = "prompts/examples/cuda/p01_allreduce_oneshot.py"
_INLINE_CUDA = "prompts/examples/cuda/p01_allreduce_loadinline.py"
_COPY_CUDA = "prompts/examples/cuda/p02_allgather_copyengine.py"
_GEMM_CUDA = "prompts/examples/cuda/p13_gemm_allreduce.py"
_FLAGS_CUDA = "tests/honest/cuda/p02_push_with_own_flags.py"
_SCATTER_CUDA = "tests/honest/cuda/p07_reduce_scatter_static.py"
_ALLTOALL_CUDA = "tests/honest/cuda/p08_push_parity.py"
_CHUNKED_CUDA = "tests/honest/cuda/p13_joined_side_stream.py"


def _cuda(
    name: str,
    base: str,
    replace: tuple[tuple[str, str], ...],
    kind: Kind,
    planted: str,
    names: str,
    expected: tuple[Verdict, ...] = (),
    case: str = "pkb",
) -> Fault:
    return Fault(name, base, replace, kind, planted, names, expected, case, "bfloat16", 2, "cuda")


_CUDA = (
    _cuda(
        "p01_cuda_last_rank_left_out",
        _ONESHOT_CUDA,
        (
            (
                "if (r + k < world) rs_add16<T>(sum, word[k]);",
                "if (r + k < world - 1) rs_add16<T>(sum, word[k]);",
            ),
        ),
        "wrong_values",
        "Rank <last>'s contribution is left out of the sum.",
        every(r"rank <last>\b", _LEFT_OUT),
    ),
    _cuda(
        "p01_cuda_barrier_missing",
        _ONESHOT_CUDA,
        (("    rs_barrier_block(signals, rank, world, blockIdx.x);\n", "    __syncthreads();\n"),),
        "race",
        "Blocks wait for their own threads only, not for the peers: they read what has not been written.",
        _TOO_EARLY,
        _WRONG_OR_RACE,
    ),
    _cuda(
        "p01_cuda_tail_never_written",
        _ONESHOT_CUDA,
        (("    const int64_t words = (n + width - 1) / width;\n", "    const int64_t words = n / width;\n"),),
        "wrong_values",
        "The last elements that do not fill a word of 16 bytes are never written.",
        every(_NEVER_WRITTEN, r"last|tail|end|final|element"),
        case="odd",
    ),
    _cuda(
        "p01_cuda_exit_barrier_missing",
        _INLINE_CUDA,
        (("    barrier(pads, rank, world);  // exit: nobody reads this rank's buffer any more\n", ""),),
        "race",
        "The exit barrier is missing: the next call overwrites what a slow peer still reads.",
        _TOO_LATE,
        _WRONG_OR_RACE,
    ),
    _cuda(
        "p02_cuda_copies_not_joined",
        _COPY_CUDA,
        (
            (
                "    for (int step = 1; step < world; ++step) "
                "cudaStreamWaitEvent(stream, copied[(rank + step) % world], 0);  // join\n",
                "",
            ),
        ),
        "race",
        "The caller's stream does not wait for the copies on the side streams.",
        _TOO_EARLY + r"|\bstream|\bjoin|(not|never|without) wait|" + _NEVER_WRITTEN,
        (*_WRONG_OR_RACE, Verdict.integrity),
    ),
    _cuda(
        "p02_cuda_slot_of_the_neighbour",
        _COPY_CUDA,
        (("(char*)out + from * bytes, peers[from]", "(char*)out + from * bytes, peers[(from + 1) % world]"),),
        "wrong_values",
        "Slots are off by one: slot r holds rank r + 1's matrix.",
        _NEXT_SLOT,
    ),
    _cuda(
        "p02_cuda_waits_for_the_next_round",
        _FLAGS_CUDA,
        (("+ from, round);\n        __syncthreads();", "+ from, round + 1);\n        __syncthreads();"),),
        "deadlock",
        "Every block waits for a flag value that its peers raise in the next call only.",
        every(r"flag|rs_wait|allgather|kernel|line \d+|signal", r"wait|never|raised|reach|value|runs"),
    ),
    _cuda(
        "p07_cuda_block_of_the_next_rank",
        _SCATTER_CUDA,
        (("buffers[r][rank * shard + i]", "buffers[r][(rank + 1) % world * shard + i]"),),
        "wrong_values",
        "Each rank returns the next rank's row block.",
        _NEXT_BLOCK,
    ),
    _cuda(
        "p07_cuda_illegal_address",
        _SCATTER_CUDA,
        (("        rs_round(out[i], sum);\n", "        rs_round(out[i + (1ll << 40)], sum);\n"),),
        "runtime_error",
        "The kernel writes far outside of the output.",
        every(r"illegal|out of bounds|outside|address", r"memory|access|kernel|line \d+|address"),
    ),
    _cuda(
        "p08_cuda_parity_always_zero",
        _ALLTOALL_CUDA,
        (("(rs_epoch(signals, rank, blockIdx.x) & 1) * world * bytes", "0 * world * bytes"),),
        "race",
        "All calls use the same half of the double buffer, and there is one barrier only.",
        _TOO_LATE + r"|double buffer|\bhalf",
        _WRONG_OR_RACE,
    ),
    _cuda(
        "p08_cuda_too_many_threads",
        _ALLTOALL_CUDA,
        (("<<<64, 512, 0, stream>>>", "<<<64, 2048, 0, stream>>>"),),
        "runtime_error",
        "The kernel is launched with more threads in a block than there may be.",
        every(r"launch|configuration|threads|invalid", r"invalid|threads|2048|1024|argument|line \d+|failed"),
    ),
    _cuda(
        "p13_cuda_side_stream_not_joined",
        _GEMM_CUDA,
        (("    main.wait_stream(SIDE)\n    return out\n", "    return out\n"),),
        "race",
        "The caller's stream does not wait for the sums on the side stream.",
        _TOO_EARLY + r"|\bstream|\bjoin|(not|never|without) wait|" + _NEVER_WRITTEN,
        (*_WRONG_OR_RACE, Verdict.integrity),
        "large",
    ),
    _cuda(
        "p13_cuda_mean_for_sum",
        _CHUNKED_CUDA,
        (("        rs_round(out[i], sum);\n", "        rs_round(out[i], sum / world);\n"),),
        "wrong_values",
        "The products' mean over ranks is returned where their sum belongs.",
        _AVERAGED,
    ),
    _cuda(
        "p13_cuda_undeclared_function",
        _CHUNKED_CUDA,
        (("sum += rs_to_sum(buffers[r][i]);", "sum += rs_sum(buffers[r][i]);"),),
        "compile_error",
        "A template of types, rs_sum, is called as if it were a function.",
        every(r"rs_sum", r"line \d+|argument|template|declared|expected"),
    ),
)

FAULTS: tuple[Fault, ...] = _CPU + _CUDA
