"""Known causes of errors at run time: what Python, torch, kit and CUDA say, and what is behind it.

A rule's pattern is looked for in `Type: message` of a rank's error; one of EXITS in how a rank ended, such as
`SIGSEGV`, and what it printed before.
"""

from __future__ import annotations

from harness.cause_rules import Rule

KIT_NAMES = {
    "harness.kit": ("build", "symmetric", "rank", "world_size", "stream"),
    "SymmetricBuffer": ("local", "ptrs", "signals", "peer", "barrier"),
}
"""What a candidate may use of the module and of what `kit.symmetric` returns."""

_HANDLE = (
    r"buffer_ptrs\w*|signal_pad_ptrs\w*|multicast_ptr|get_buffer|get_remote_tensor|get_signal_pad|barrier|put_signal"
    r"|wait_signal|buffer_size|signal_pad_size|offset|rank|world_size"
)
_DID_YOU_MEAN = r"(?:\. Did you mean: '(?P<like>\w+)'\?)?"
_SYMM_MEM = r"symm_mem|_symmetric_memory"
_CUDA = r"(?i)cuda|__global__|triton"
"""Of a candidate that shows that it is for GPUs: rules do not know the platform."""

RULES: tuple[Rule, ...] = (
    # Python's own syntax.
    Rule(
        r"SyntaxError: f-string|SyntaxError: (?:invalid syntax|invalid decimal literal).*\{|single '\}' is not allowed",
        "braces in f-string",
        "an f-string takes the braces of C code for its own: double them, or use a plain raw string and constants by "
        "-D flags or .replace()",
    ),
    Rule(r"SyntaxError: \(unicode error\)", "unescaped backslash",
         'a backslash in a string that is not raw begins an escape: write r"""'),
    Rule(r"SyntaxError: unterminated triple-quoted|SyntaxError: unterminated string", "unclosed string",
         "a Python string is never closed"),
    Rule(r"(?:SyntaxError|IndentationError|TabError): (?P<name>.+?)(?: \(candidate\.py, line \d+\))?$", "Python syntax",
         "not valid Python: {name}"),
    Rule(r"(?:KeyError|ValueError|IndexError): .*(?:format string|Replacement index)", "braces in format",
         "str.format takes the braces of C code for its own: double them or use .replace()"),
    # Names.
    Rule(r"NoSolutionError", "no solution", "the module must define a function `solution(*args)`"),
    Rule(
        r"AttributeError: module 'harness\.kit' has no attribute '(?P<name>\w+)'",
        "no such name",
        f"kit has no `{{name}}`{{like}} (it has {', '.join(KIT_NAMES['harness.kit'])})",
    ),
    Rule(
        r"ImportError: cannot import name '(?P<name>\w+)' from 'harness\.kit'",
        "no such name",
        f"kit has no `{{name}}`{{like}} (it has {', '.join(KIT_NAMES['harness.kit'])})",
    ),
    Rule(
        r"AttributeError: 'SymmetricBuffer' object has no attribute '(?P<name>\w+)'",
        "no such name",
        f"a buffer of kit.symmetric has no `{{name}}`{{like}} (it has {', '.join(KIT_NAMES['SymmetricBuffer'])})",
    ),
    Rule(
        r"the library has no extern \"C\" function '(?P<name>\w+)'; it has: (?P<there>.*)",
        'missing extern "C"',
        '`{name}` is not an extern "C" function that the source defines (those are: {there}){like}',
    ),
    Rule(
        rf"AttributeError: 'NoneType' object has no attribute '(?P<name>{_HANDLE})'",
        "no symmetric memory",
        "symm_mem.rendezvous gave None, so probably its tensor is not from symm_mem.empty (or is a copy of one)",
        certain=False,
        source=_SYMM_MEM,
        printed=r"Pointer not within any SymmetricMemory allocation",
    ),
    Rule(r"'NoneType' object (?:has no attribute '(?P<name>\w+)'|is not (?P<name2>\w+))", "None used",
         "something is None here that should not be (used: {name})"),
    Rule(rf"module '(?P<where>[\w.]+)' has no attribute '(?P<name>\w+)'{_DID_YOU_MEAN}", "no such name",
         "{where} of this version has no `{name}`{like}"),
    Rule(rf"'(?P<where>[\w.]+)' object has no attribute '(?P<name>\w+)'{_DID_YOU_MEAN}", "no such name",
         "a {where} has no `{name}`{like}"),
    Rule(
        r"cannot import name '(?P<name>\w+)' from '(?P<where>[\w.]+)'(?:.*Did you mean: '(?P<like>\w+)')?",
        "no such name",
        "{where} of this version has no `{name}`{like}",
    ),
    Rule(r"No module named '(?P<name>[\w.]+)'", "no such module", "there is no module `{name}` here: do without it"),
    Rule(rf"NameError: name '(?P<name>\w+)' is not defined{_DID_YOU_MEAN}", "undeclared name",
         "`{name}` is not defined{like}"),
    Rule(
        r"UnboundLocalError: .*'(?P<name>\w+)'",
        "undeclared name",
        "`{name}` is assigned in this function only after it is read, or on another path: assign it first, or declare "
        "it global",
    ),
    # kit used wrongly.
    Rule(r"KitError: kit\.symmetric needs running ranks", "symmetric at import",
         "kit.symmetric is called at import: call it inside solution, once for each shape and dtype"),
    Rule(
        r"KitError: extern \"C\" function (?P<function>\w+): type '(?P<name>[^']+)' cannot be passed",
        'extern "C" type',
        '`{name}` cannot cross from Python into extern "C" {function}: take pointers (void*, float*) and numbers',
    ),
    Rule(r"KitError: function (?P<name>\w+) is not in the compiled library", "undefined symbol",
         "`{name}` is not in the library: it is inline, or the preprocessor removes it"),
    Rule(r"KitError: (?P<name>.+)", "kit misused", "{name}"),
    Rule(r"TypeError: (?P<name>\w+)\((?P<wanted>.*)\) takes (?P<count>\d+) arguments, not (?P<given>\d+)",
         "wrong argument count", "{name} takes {count} arguments, not {given}: {wanted}"),
    Rule(
        r"TypeError: (?P<name>\w+): argument (?P<number>\d+) \((?P<wanted>.+)\) cannot be made from an? (?P<given>\w+)",
        "wrong argument type",
        "argument {number} of {name} is `{wanted}` and was given a {given}: a pointer takes a tensor or an address, a "
        "number an int or float (.item() of a tensor)",
    ),
    Rule(r"TypeError: (?P<name>\w+)\(\): incompatible function arguments", "wrong argument type",
         "extension function {name} was called with other arguments than its C++ signature has"),
    Rule(
        r"TypeError: (?P<name>[\w.]+)\(\) (?P<what>got an unexpected keyword argument '\w+'|missing \d+ required .*"
        r"|takes .* positional arguments? but .* given|got multiple values .*)",
        "wrong arguments",
        "{name}() {what}",
    ),
    Rule(r"expected scalar type (?P<wanted>\w+) but found (?P<given>\w+)", "dtype",
         "a tensor is {given} where {wanted} is read: data_ptr<T>() must name the tensor's own dtype"),
    # Symmetric memory of torch.
    Rule(r"SymmetricMemory does not support device type (?P<name>\w+)", "symmetric memory device",
         "torch's symmetric memory does not work on {name} tensors: use kit.symmetric, or allocate on the GPU"),
    Rule(r"Expected reqs\[r\]\.\w+ == reqs\[0\]\.\w+", "rendezvous sizes",
         "the ranks met in rendezvous with tensors of different sizes: shape and dtype must be the same on all"),
    Rule(r"neither specified during allocation nor passed to rendezvous", "rendezvous group",
         "rendezvous needs a group: pass dist.group.WORLD"),
    # CUDA.
    Rule(
        r"no kernel image is available|device kernel image is invalid",
        "wrong target",
        "the kernel was compiled for another GPU architecture: leave out -arch and -gencode flags of your own",
    ),
    Rule(r"invalid device function|named symbol not found", "wrong target",
         "the GPU code has no such kernel, which is probably compiled for another architecture or an instance that is "
         "missing", certain=False),
    Rule(
        r"too many resources requested for launch",
        "launch resources",
        "threads per block times registers per thread is more than an SM has: fewer threads, or __launch_bounds__ on "
        "the kernel",
    ),
    Rule(
        r"too many blocks in cooperative launch",
        "grid too large",
        "a cooperative grid must be resident at once: take the number of blocks from rs_resident_blocks or the "
        "occupancy API",
    ),
    Rule(
        r"(?:CUDA (?:runtime )?error|cuda\w*Error\w*).*invalid argument",
        "launch arguments",
        "probably a launch with more than 48 KiB of dynamic shared memory without cudaFuncSetAttribute("
        "MaxDynamicSharedMemorySize), or a size of 0",
        certain=False,
        source=r"extern\s+__shared__|cudaFuncSetAttribute",
    ),
    Rule(r"invalid configuration argument", "launch configuration",
         "a launch has 0 blocks or threads, more than 1024 threads a block, or too many blocks in y or z"),
    Rule(r"(?:CUDA (?:runtime )?error|cuda\w*Error\w*).*invalid argument", "launch arguments",
         "an argument of a CUDA call does not fit: probably a size of 0, a null pointer or too much shared memory",
         certain=False),
    Rule(
        r"illegal memory access",
        "wild address",
        "probably an index beyond a signal pad: torch's holds 9216 bytes, 2304 words: with one channel per block and "
        "rank 1152 blocks at 2 ranks, 576 at 4, 288 at 8",
        certain=False,
        source=r"(?s)signal_pad_ptrs",
    ),
    Rule(
        r"illegal memory access",
        "wild address",
        "probably `buffer_ptrs`, a list on the host, was given to a kernel that reads it as device memory: pass "
        "`buffer_ptrs_dev`, and add the handle's `offset` to each base",
        certain=False,
        source=r"\.buffer_ptrs\b",
    ),
    Rule(
        r"illegal memory access",
        "wild address",
        "a kernel used an address that is not mapped on its GPU: probably an index beyond the end, a host pointer, or "
        "a peer's buffer that was freed; the error may come from a launch before this line",
        certain=False,
    ),
    Rule(
        r"misaligned address",
        "misaligned address",
        "an access of 8 or 16 bytes is not on a multiple of its size: odd sizes and slices start anywhere; check the "
        "address, or use rs_ld16_part and rs_st16_part",
    ),
    Rule(r"illegal instruction", "illegal instruction",
         "the GPU met an instruction that it cannot run: probably wgmma, TMA or mbarrier with a wrong descriptor or "
         "operand", certain=False),
    Rule(
        r"unspecified launch (?:failure|error)",
        "kernel crashed",
        "the kernel ended in a fault or __trap(): probably a wild shared-memory or TMA address, or a barrier of "
        "symm_mem that ran into its timeout",
        certain=False,
    ),
    Rule(r"device-side assert", "device assert", "an assert in a kernel does not hold",
         printed=r"[Aa]ssertion .*failed"),
    Rule(r"peer access (?:is not supported|has not been enabled)", "peer access",
         "a peer's memory is used that is not mapped here: only symmetric memory is, by kit.symmetric or "
         "symm_mem.rendezvous"),
    Rule(r"peer access is already enabled", "peer access",
         "cudaDeviceEnablePeerAccess is not needed, and an error the second time: leave it out"),
    Rule(r"invalid resource handle", "stream handle",
         "probably a stream or event of another device, or none at all: pass kit.stream() as a cudaStream_t",
         certain=False),
    Rule(
        r"operation not permitted when stream is capturing|operation (?:failed|would).*captur"
        r"|captur.*(?:unsafe|invalid)|dependency created on uncaptured work|legacy stream depend on a capturing",
        "not capturable",
        "the call synchronises, allocates or uses the default stream while a CUDA graph is captured: work on the "
        "current stream only, with buffers made before",
    ),
    Rule(r"(?:system not yet initialized|no CUDA-capable device|invalid device ordinal)", "device",
         "a GPU that is not this rank's is used: stay on the current device"),
    Rule(r"out of memory|can't allocate memory|[Cc]annot allocate memory|MemoryError|bad_alloc", "out of memory",
         "an allocation is larger than the memory that is left: make buffers once, not in every call, and smaller"),
    # torch.
    Rule(
        r"Expected all tensors to be on the same device|is not on the expected device|is a CPU tensor"
        r"|must be a CUDA tensor|to be (?:a )?CPU tensor",
        "device",
        "tensors on different devices meet: make new ones with device=x.device",
    ),
    Rule(r"Torch not compiled with CUDA|Found no NVIDIA driver|torch\.cuda\.\w+ requires CUDA support"
         r"|dummy base class (?:Event|CUDAGraph)|accelerator device when none is available", "device",
         "there is no GPU here: this is the cpu platform, or the module is imported where it is only built"),
    Rule(r"No backend type associated with device type (?P<name>\w+)", "device",
         "the process group has no backend for {name} tensors"),
    Rule(
        r"mat1 and mat2 shapes cannot be multiplied (?P<name>\(.*\))|size of tensor a (?P<name2>\(\d+\) must match the "
        r"size of tensor b \(\d+\))|expanded size of the tensor (?P<name3>\(\d+\) must match the existing size \(\d+\))"
        r"|Sizes of tensors must match except (?P<name4>.*)|size mismatch(?P<name5>.*)",
        "shapes",
        "the shapes do not go together: {name}",
    ),
    Rule(r"shape '(?P<name>[^']+)' is invalid for input of size (?P<size>\d+)", "shapes",
         "{size} elements do not make the shape {name}"),
    Rule(r"view size is not compatible", "not contiguous",
         "view needs contiguous memory: .contiguous() before it, or .reshape()"),
    Rule(r"to have the same dtype, but got: (?P<name>.+)|Expected out tensor to have dtype (?P<name2>.+)", "dtype",
         "dtypes do not go together: {name}"),
    Rule(r"unsupported ScalarType (?P<name>\w+)", "dtype", "numpy has no {name}: stay in torch"),
    Rule(r"index (?P<name>-?\d+) is out of bounds|list index out of range", "index", "an index is beyond the end"),
    Rule(r"leaf Variable that requires grad", "autograd",
         "an input that requires grad is changed in place: work under torch.no_grad() or on .detach()"),
    # torch.distributed.
    Rule(r"Tensors must be contiguous", "not contiguous",
         "collectives take contiguous tensors only: call .contiguous() first"),
    Rule(r"ReduceOp|reduce_op|RedOpType|does not support (?:reduction|op)|op \S+ (?:is )?not supported|Unsupported op",
         "reduce op", "this backend does not have this reduction for this dtype"),
    Rule(r"Invalid scalar type|Input tensor data type is not supported|Unconvertible NCCL type|unsupported data type",
         "dtype", "the backend of torch.distributed cannot send this dtype: view it as another of the same size"),
    Rule(
        r"output tensor list|input tensor list|invalid tensor size|outputShape\[|inputShape\["
        r"|must be equal to world_size|tensor size must be equal to|outputs?\[0\]\.sizes|in->size == out->size"
        r"|Split sizes doesn't match|Number of tensor splits|[Ii]ncorrect (?:in|out)put list size",
        "collective sizes",
        "the tensors of a collective do not have the sizes that its world size asks for",
    ),
    Rule(r"Invalid usage of tensors with different dtypes", "dtype",
         "the tensors of one collective must have one dtype"),
    Rule(r"invalid root rank|Invalid destination rank|Invalid source rank|invalid (?:src|dst) rank", "rank number",
         "a rank is named that the group does not have, or the rank itself"),
    Rule(r"new group's world size should be less", "group size", "a new group has more ranks than there are"),
    Rule(r"not initialized in the world group map|Group .* is not registered|not part of (?:the )?group", "group",
         "the group is none that this rank is in"),
    Rule(r"initialize the default process group twice", "process group",
         "the process group is there already: leave init_process_group out"),
    Rule(r"Default process group has not been initialized", "process group",
         "torch.distributed is used at import, before there is a process group: use it inside solution"),
    Rule(r"NCCL error|ncclUnhandledCudaError|ncclInvalidUsage|ncclInternalError", "NCCL",
         "NCCL failed: probably the ranks called different collectives or sizes, or a kernel failed before",
         certain=False),
    Rule(r"op\.preamble\.length <= op\.nbytes\. (?P<given>\d+) vs (?P<wanted>\d+)", "collectives do not match",
         "a collective got {given} bytes from a peer where {wanted} belong: the order of the collectives is not the "
         "same on all ranks, or their sizes do not match"),
    Rule(r"[Cc]onnection (?:closed|reset|refused)|[Bb]roken pipe", "peer lost",
         "another rank ended, and this one lost its connection: look at that one"),
    # What solution returned.
    Rule(r"must be .*, not None", "nothing returned", "solution returned None: a return is missing on some path"),
    Rule(r"has shape (?P<given>\(.*?\)); it must be (?P<wanted>\(.*?\))", "output shape",
         "solution returned shape {given} where the reference returns {wanted}"),
    Rule(r"has dtype (?P<given>\w+); it must be (?P<wanted>\w+)", "output dtype",
         "solution returned {given} where the reference returns {wanted}: convert at the end, sum in float before"),
    Rule(r"is on (?P<given>\w+); it must be on (?P<wanted>\w+)", "output device",
         "solution returned a tensor on {given}; it must be on {wanted}"),
    Rule(r"has (?P<given>\d+) items; it must have (?P<wanted>\d+)|must be a (?P<wanted2>\w+ of \d+|dict .*), not"
         r"|must be (?P<wanted3>a tensor), not", "output structure",
         "solution must return the reference's structure: {wanted}"),
)  # fmt: skip

EXITS: tuple[Rule, ...] = (
    Rule(r"^SIGSEGV", "segmentation fault",
         "native code used an address that is not mapped: probably host code read a device pointer, an index beyond "
         "the end, or an argument of the wrong size", certain=False, source=_CUDA),
    Rule(r"^SIGSEGV", "segmentation fault",
         "native code used an address that is not mapped: probably an index beyond the end, or an argument of the "
         "wrong size", certain=False),
    Rule(r"^SIGBUS", "bus error",
         "native code used shared memory beyond its end, or a misaligned address", certain=False),
    Rule(r"(?s)^SIGABRT.*terminate called after throwing an instance of '(?P<name>[^']+)'", "C++ exception",
         "a C++ exception `{name}` left an extern \"C\" function or a thread: nothing catches it there",
         printed=r"what\(\):"),
    Rule(r"(?s)^SIGABRT.*(?:free\(\)|malloc|corrupted|double free|munmap_chunk|stack smashing)", "heap corrupted",
         "native code wrote beyond the end of a buffer, or freed one twice",
         printed=r"free\(\)|malloc|corrupted|double free|munmap_chunk|stack smashing"),
    Rule(r"^SIGABRT", "abort", "native code called abort(), as a failed assert does", printed=r"[Aa]ssert"),
    Rule(r"^SIGFPE", "division by zero", "native code divided an integer by zero"),
    Rule(r"^SIGILL", "illegal instruction", "native code ran an instruction that this processor does not have"),
    Rule(r"^SIGKILL", "killed", "the process was killed, probably for want of host memory", certain=False),
    Rule(r"^exit -?\d+", "process ended", "the candidate ended its process: sys.exit, os._exit or exit() in C"),
)  # fmt: skip
