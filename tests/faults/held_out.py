"""Faults on which the diagnosis was not tuned: each was written, with what names it, before the tool had seen it."""

from __future__ import annotations

from harness.types import Verdict
from tests.faults.fault import Fault, every

_WRONG_OR_RACE = (Verdict.wrong_values, Verdict.race)
_ABSENT = (
    r"left out|leaves out|missing|not (added|included|counted|used|applied|considered)|lacks?\b|without|never added"
    r"|omit|forg[eo]t|ignor|no (effect|influence)|unused|does not (depend|change|react)|absent|dropped"
)
_NOT_WRITTEN = (
    r"never (been )?written|not (been )?written|unwritten|uninitiali[sz]ed|\bzeros?\b|empty|left as|never filled"
)
_TOO_EARLY = (
    r"\bstale|too early|not yet|(former|previous|earlier|last|older|first) call|call before|calls? ago"
    r"|(before|until|without waiting|not wait)[^.]{0,60}(written|wrote|published|arrive|there|reduced|finished|done)"
    r"|not (been )?(written|arrived|finished|awaited|waited)|ha(s|ve|d) not (written|published|arrived)"
)

_REDUCE = "p04_reduce_tree.py"
_SCATTER = "p05_scatter_push.py"
_GATHER = "p06_gather_sends.py"
_NORM_BACKWARD = "p09_norm_backward_sums.py"
_EMBEDDING = "p10_embedding_pull.py"
_GEMM_GATHER = "p14_gemm_allgather_push.py"
_CLIP = "p21_clip_by_norm.py"
_BALANCE = "p24_balancing_loss.py"
_ULYSSES = "p36_ulysses_pull.py"
_INT8 = "p44_int8_mean.py"
_LOGITS = "p46_logits_pull.py"
_SIGLIP = "p58_siglip_ring.py"
_ZIGZAG = "p71_zigzag_conv.py"

HELD_OUT: tuple[Fault, ...] = (
    # ----------------------------------------------------------------------------------------------------- wrong values
    Fault(
        "p04_tree_ends_a_level_early",
        _REDUCE,
        (("    while distance < world:\n", "    while distance < world // 2:\n"),),
        "wrong_values",
        "The tree ends one level early: the half of the ranks that is farther from the root is missing in the sum.",
        every(_ABSENT, r"\brank|half|peers|level"),
    ),
    Fault(
        "p04_partial_sums_off_the_root",
        _REDUCE,
        (("(tensor.dtype, copy=True) if rank == dst else tensor.clone()\n", "(tensor.dtype, copy=True)\n"),),
        "wrong_values",
        "Ranks other than the root return the partial sum of their subtree instead of their own matrix.",
        every(
            r"\brank|root|dst",
            r"partial|subtree|\bsums?\b|summed|added|adds|plus|extra|\balso\b|as well|should not|too many|on top",
        ),
        min_ranks=3,
    ),
    Fault(
        "p05_slices_counted_from_the_root",
        _SCATTER,
        (("            buf.peer(peer).copy_(", "            buf.peer((src + peer) % world).copy_("),),
        "wrong_values",
        "Slices are handed out beginning with the root: slice 0 goes to it instead of to rank 0, and so on, rotated.",
        every(
            r"slices?\b|slot|matrix|rows|block|rank \d's|\[\d",
            r"shift|rotat|off by|relative|counted|belongs|meant for|instead|in place of|wrong|permut|another rank",
        ),
    ),
    Fault(
        "p06_own_slot_left_empty",
        _GATHER,
        (("            out[source] = tensor\n", "            continue\n"),),
        "wrong_values",
        "The root never puts its own matrix into the result: that slot stays uninitialised.",
        every(_NOT_WRITTEN, r"\bown\b|root|dst|itself|slot|out\[|rank \d"),
    ),
    Fault(
        "p09_gradients_swapped",
        _NORM_BACKWARD,
        (("    return d_gamma, d_beta\n", "    return d_beta, d_gamma\n"),),
        "wrong_values",
        "The two outputs are swapped: the gradient of the shift is returned first.",
        r"swap|exchanged|interchang|mixed up|each other|permut|order of the (outputs|results)|other output"
        r"|out\[0\] (is|holds|equals|has|contains)[^.]*out\[1\]|d_gamma[^.]*d_beta|d_beta[^.]*d_gamma",
    ),
    Fault(
        "p09_rank_zero_counted_twice",
        _NORM_BACKWARD,
        (("    total = torch.zeros(2, columns, dtype=wide)\n", "    total = sums.peer(0).clone()\n"),),
        "wrong_values",
        "The sum begins with rank 0's part, which is then added twice.",
        every(r"rank 0\b", r"twice|two times|2 times|doubl|counted 2|added 2|2 ?x\b|once too often|again"),
    ),
    Fault(
        "p10_in_the_order_asked",
        _EMBEDDING,
        (("        found[at : at + len(wanted)] = table", "        found[owners == owner] = table"),),
        "wrong_values",
        "Rows are returned in the order in which they were asked for instead of sorted by owner.",
        every(r"order|sort|permut|shuffl|rearrang|moved|other places?|another place|elsewhere", r"row|ind|id|element"),
    ),
    Fault(
        "p14_blocks_stacked_along_the_wrong_axis",
        _GEMM_GATHER,
        (("slots.local.permute(1, 0, 2).reshape(m, world * n)", "slots.local.reshape(m, world * n).clone()"),),
        "wrong_values",
        "Blocks are joined along the wrong axis: one below the other, and then only reshaped.",
        r"\bax[ei]s|\bdim\b|dimension|layout|transpos|permut|strid|reshap|rearrang|interleav|side by side|row-major"
        r"|one (under|below|after) (another|the other)",
    ),
    Fault(
        "p14_operands_in_half_precision",
        _GEMM_GATHER,
        (("(A.to(wide) @ B.to(wide))", "(A.half().to(wide) @ B.half().to(wide))"),),
        "wrong_values",
        "Both operands are rounded to float16 before the product in a float32 problem.",
        r"float16|fp16|\bhalf\b|1[0-2][- ]bits?\b|16[- ]bit|(reduced|lower|low|less) precision|tf32",
    ),
    Fault(
        "p21_norms_added_instead_of_squares",
        _CLIP,
        (
            (
                "grad.to(wide).square().sum() for grad in grads)",
                "grad.to(wide).square().sum() for grad in grads).sqrt()",
            ),
            ("    norm = total.sqrt().squeeze()\n", "    norm = total.squeeze()\n"),
        ),
        "wrong_values",
        "The ranks' norms are added up instead of their squares.",
        r"squares?\b|squared|sqrt|square root|norms[^.]{0,40}(added|summed)|(sum|adds?)[^.]{0,40}norms",
    ),
    Fault(
        "p21_last_gradient_not_clipped",
        _CLIP,
        (("        for grad in grads:\n", "        for grad in grads[:-1]:\n"),),
        "wrong_values",
        "The loop ends one too early: the last gradient is not scaled.",
        every(
            r"\blast\b|\[3\]|tensor 3|fourth|third|grad_tensors",
            r"not (been )?(clip|scal|multipl|chang|updat|writ)|unchanged|unclipped|unscaled|left as|never|untouched"
            r"|still|skip|as (it )?(is|was|were|came)|the input",
        ),
    ),
    Fault(
        "p24_mask_ignored",
        _BALANCE,
        (("    if attention_mask is not None:\n", "    if attention_mask is not None and world == 1:\n"),),
        "wrong_values",
        "attention_mask is ignored: masked tokens count as well.",
        every(r"mask", _ABSENT + r"|counts?\b|counted|all tokens"),
    ),
    Fault(
        "p36_heads_taken_with_a_stride",
        _ULYSSES,
        (
            (
                "buf.peer(r).narrow(head_dim, rank * heads, heads)",
                "buf.peer(r)[:, :, rank::world]",
            ),
        ),
        "wrong_values",
        "Each rank takes every <world>th head, beginning with its number, instead of a consecutive block of heads.",
        every(
            r"head|axis 2|\bdim(ension)? 2|axis",
            r"strid|interleav|every|step|round.robin|consecutive|cyclic|permut|order|(other|wrong) heads?"
            r"|belongs|instead",
        ),
    ),
    Fault(
        "p44_one_step_for_all_blocks",
        _INT8,
        (("    step = blocks.abs().amax(1, keepdim=True)", "    step = blocks.abs().amax()"),),
        "wrong_values",
        "One scale is used for the whole gradient instead of one for each block.",
        r"\bscales?\b|coars|(common|one|same|single|global|larger?|too large) (step|grid|quanti|resolution)"
        r"|per[- ]block",
    ),
    Fault(
        "p46_bias_forgotten",
        _LOGITS,
        (("    logits += bias_shard.to(wide)\n", ""),),
        "wrong_values",
        "bias_shard is not added.",
        every(r"bias", _ABSENT),
    ),
    Fault(
        "p46_weights_of_the_first_call",
        _LOGITS,
        (
            (
                "    weight = weight_shard.to(wide)\n",
                "    weight = _buffers.setdefault(part, weight_shard.to(wide).clone())\n",
            ),
        ),
        "wrong_values",
        "The weights of the first call are kept and used in all later calls, whatever weight_shard holds then.",
        _TOO_EARLY + r"|weight[^.]*(" + _ABSENT + r")|(cached|kept|frozen)",
        expected=(*_WRONG_OR_RACE, Verdict.integrity),
    ),
    Fault(
        "p71_end_of_the_wrong_chunk",
        _ZIGZAG,
        (("    before_late = ends.peer(rank + 1)[1].clone()", "    before_late = ends.peer(rank + 1)[0].clone()"),),
        "wrong_values",
        "Before the late chunk each rank puts the end of its neighbour's early chunk instead of its late one's.",
        r"halo|neighbou?r|boundar|border|\bedge|next rank|\blate\b|second (half|chunk)|\b7\b",
    ),
    Fault(
        "p43_update_with_the_wrong_sign",
        "p43_adam_allgather.py",
        (("    updated = (weight - lr * m_hat", "    updated = (weight + lr * m_hat"),),
        "wrong_values",
        "The update is added to the weights instead of subtracted: its sign is wrong.",
        r"\bsigns?\b|negat|opposite|direction|subtract|\bplus\b|minus|ascent|uphill|\blr\b[^.]* -0",
    ),
    # ------------------------------------------------------------------------------------------------------------ races
    Fault(
        "p05_copies_before_the_slices_are_there",
        _SCATTER,
        (
            (
                "    buf.barrier()  # the slices are there\n    out = buf.local.clone()\n",
                "    out = buf.local.clone()\n    buf.barrier()  # the slices are there\n",
            ),
        ),
        "race",
        "The buffer is copied out before the barrier that says that the root has written it.",
        _TOO_EARLY,
        expected=(*_WRONG_OR_RACE, Verdict.integrity),
    ),
    Fault(
        "p14_waits_in_the_first_call_only",
        _GEMM_GATHER,
        (
            ("_slots = {}\n", "_slots = {}\n_waited = []\n"),
            (
                "    slots.barrier()  # all blocks have arrived\n",
                "    if not _waited:\n        slots.barrier()  # all blocks have arrived\n    _waited.append(True)\n",
            ),
        ),
        "race",
        "Only the first call waits for the peers' blocks; a later one may read those of the call before.",
        _TOO_EARLY,
        expected=_WRONG_OR_RACE,
    ),
    Fault(
        "p44_sum_not_waited_for",
        _INT8,
        (
            (
                "    summing = dist.all_reduce(image, async_op=True)\n    summing.wait()\n",
                "    dist.all_reduce(image, async_op=True)\n",
            ),
        ),
        "race",
        "The asynchronous all-reduce is not waited for: its result is used before it has finished.",
        _TOO_EARLY + r"|(not|never|without) wait|unwaited|async|in flight|(not|un) ?(been )?reduced|all.?reduce",
        expected=(*_WRONG_OR_RACE, Verdict.runtime_error, Verdict.integrity),
    ),
    # -------------------------------------------------------------------------------------------------------- deadlocks
    Fault(
        "p06_lower_ranks_do_not_send",
        _GATHER,
        (
            (
                "        dist.send(tensor.contiguous(), dst)\n",
                "        if rank > dst:\n            dist.send(tensor.contiguous(), dst)\n",
            ),
        ),
        "deadlock",
        "Ranks below the root do not send: the root waits in recv for ever for what no rank sends.",
        every(r"recv|receiv", r"rank \d|root|no rank", r"wait|never|\bsen[dt]|return|finish|left|match"),
        expected=(Verdict.deadlock, Verdict.timeout),
    ),
    Fault(
        "p58_one_rank_leaves_the_ring",
        _SIGLIP,
        (("    for distance in range(world):\n", "    for distance in range(world - rank // (world - 1)):\n"),),
        "deadlock",
        "Rank <last> makes one round less than the others, and they wait for its transfer.",
        every(
            r"rank <last>\b", r"wait|transfer|recv|receiv|\bsen[dt]|finish|return|left|round|step|line \d+|fewer|less"
        ),
        expected=(Verdict.deadlock, Verdict.timeout),
    ),
    Fault(
        "p10_a_barrier_for_every_fifty_ids",
        _EMBEDDING,
        (
            (
                "    table.barrier()  # all have read\n",
                "    for _ in range(0, len(indices), 50):\n        table.barrier()  # all have read\n",
            ),
        ),
        "deadlock",
        "Ranks ask for different numbers of ids, and pass the barrier once for every 50: some wait there for ever.",
        every(r"barrier", r"different|number|more often|fewer|times|match|finish|return|left|wait|never|skip"),
    ),
    Fault(
        "p46_barrier_of_rank_zero_alone",
        _LOGITS,
        (
            ("import torch\n\nfrom", "import torch\nimport torch.distributed as dist\n\nfrom"),
            (
                "    out = torch.empty(tokens, world * part, dtype=dtype)\n",
                "    out = torch.empty(tokens, world * part, dtype=dtype)\n    if rank == 0:\n        dist.barrier()\n",
            ),
        ),
        "deadlock",
        "Only rank 0 calls dist.barrier, where it waits for the others.",
        every(r"rank 0\b", r"barrier|line \d+", r"wait|only|alone|enter|others|never|skip|finish|return|match|differ"),
        expected=(Verdict.deadlock, Verdict.timeout),
    ),
    # ------------------------------------------------------------------------------------------ crashes and compilers
    Fault(
        "p10_ids_not_made_local",
        _EMBEDDING,
        (
            (
                "        wanted = indices[owners == owner] - owner * rows\n",
                "        wanted = indices[owners == owner]\n",
            ),
        ),
        "runtime_error",
        "Global ids are used as indices of the owner's rows, out of bounds for all owners but the first.",
        every(r"index|out of (bounds|range)", r"line \d+|table|owner|rows|local|global|\b61\b"),
    ),
    Fault(
        "p44_last_block_not_padded",
        _INT8,
        (
            (
                "    padded = functional.pad(flat_grad.flatten().to(wide), (0, -count % block_size))\n",
                "    padded = flat_grad.flatten().to(wide)\n",
            ),
        ),
        "runtime_error",
        "The gradient is not padded to a multiple of the block size, so that the view as blocks has no valid shape.",
        every(r"view|shape|size|multiple|divisible|\bpad", r"line \d+|1003|block|\b16\b"),
    ),
    Fault(
        "p27_as_long_as_what_is_sent",
        "p27_moe_all2all_pull.py",
        (("local_tensor.new_empty(sum(output_split_sizes),", "local_tensor.new_empty(sum(input_split_sizes),"),),
        "runtime_error",
        "The result has as many rows as are sent, not as are received, so that the sizes of a copy do not match.",
        every(r"size|shape|expand|match|length|number of rows", r"line \d+|\bout\b|split|rows|dimension|expected"),
        expected=(Verdict.runtime_error, Verdict.shape_error),
    ),
    Fault(
        "p18_sums_cannot_be_written",
        "p18_tp_rms_norm_fused.py",
        (("    rs_sum<T>* mine = squares[rank]", "    const rs_sum<T>* mine = squares[rank]"),),
        "compile_error",
        "The pointer to the sums is declared const and then written through: an assignment to a read-only location.",
        every(r"read-only|\bconst\b|assign", r"mine|line \d+|location"),
    ),
    Fault(
        "p03_semicolon_forgotten",
        "p03_broadcast_flags.py",
        (("        std::memcpy(out, in, bytes);\n", "        std::memcpy(out, in, bytes)\n"),),
        "compile_error",
        "A semicolon is missing after a memcpy: the compiler expected ';' before what follows.",
        every(r"expected|semicolon|';'", r"memcpy|line \d+|before|for\b"),
    ),
)
