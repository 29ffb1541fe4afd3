"""Known causes of compile errors: what nvcc, ptxas, g++, linker, loader and Triton say, and what is behind it."""

from __future__ import annotations

from harness.cause_rules import Rule

_HEADERS = {
    "cuda_bf16.h": r"(?:__)?nv_bfloat16\w*|__\w*bfloat16\w*|__bfloat\w+",
    "cuda_fp16.h": r"half2?|__half\w*|__\w*2half\w*|__h(?:add|sub|mul|fma|max|min)2?",
    "cuda_fp8.h": r"__nv_fp8\w*",
    "mma.h": r"nvcuda(?:::\w+)*",
    "cooperative_groups.h": r"cooperative_groups(?:::\w+)*",
    "cuda.h": r"CUtensorMap\w*|CUdeviceptr|CUresult|cu(?:Mem|Stream|Tensor|Get)\w+|CU_\w+",
    "cstdint": r"u?int(?:8|16|32|64)_t|u?intptr_t",
    "cstdio": r"f?printf|stderr|fflush",
    "cassert": r"assert",
    "cstring": r"mem(?:cpy|set|move|cmp)",
    "immintrin.h": r"__m(?:128|256|512)[id]?|_mm(?:256|512)?_\w+",
    "omp.h": r"omp_\w+",
}
"""Names that stand alone, by the header that declares them."""

_SCOPED = {
    ("cuda", "cuda/barrier"): r"barrier|aligned_size_t",
    ("cuda", "cuda/atomic"): r"atomic(?:_ref|_thread_fence)?|thread_scope\w*|memory_order\w*",
    ("cuda", "cuda/pipeline"): r"pipeline\w*|make_pipeline|memcpy_async",
    ("cuda", "cuda/ptx"): r"ptx",
    ("cuda::std", "cuda/std/atomic"): r"atomic\w*",
    ("std", "vector"): r"vector",
    ("std", "atomic"): r"atomic\w*|memory_order\w*",
    ("std", "thread"): r"thread|this_thread",
    ("std", "mutex"): r"mutex|lock_guard|unique_lock",
    ("std", "array"): r"array",
    ("std", "string"): r"string|to_string",
    ("std", "algorithm"): r"min|max|sort|fill\w*|copy\w*|swap|clamp",
    ("std", "numeric"): r"accumulate|iota|reduce",
    ("std", "functional"): r"function",
    ("std", "map"): r"map",
    ("std", "unordered_map"): r"unordered_map",
    ("std", "tuple"): r"tuple|make_tuple|tie",
    ("std", "memory"): r"unique_ptr|shared_ptr|make_unique|make_shared",
    ("std", "chrono"): r"chrono",
    ("std", "limits"): r"numeric_limits",
    ("std", "cmath"): r"isnan|isinf|fma|sqrt|exp|pow|fabs|lrint|nearbyint",
    ("std", "cstring"): r"memcpy|memset|memmove",
    ("std", "cstdint"): r"u?int(?:8|16|32|64)_t",
    ("at::cuda", "ATen/cuda/CUDAContext.h"): r"getCurrentCUDAStream|getCurrentDeviceProperties",
    ("c10::cuda", "c10/cuda/CUDAStream.h"): r"getCurrentCUDAStream|CUDAStream",
}  # fmt: skip
"""Names in a namespace, by namespace and header."""


def _alone(name: str) -> str:
    """What the compilers say of a name that nothing declares."""
    return (
        rf"identifier \"(?P<name>{name})\" is undefined|\(at `(?P<name2>{name})`\)|'(?P<name3>{name})' was not declared"
        rf"|'(?P<name4>{name})' does not name a type|'(?P<name5>{name})' has not been declared"
    )


def _scoped(scope: str, name: str) -> str:
    return (
        rf"namespace \"{scope}\" has no member \"(?P<name>{name})\"|\(at `{scope}::(?P<name2>{name})\b"
        rf"|'(?P<name3>{name})' is not a member of '{scope}'"
    )


def _without(text: str) -> str:
    """For `Rule.source`: the candidate does not have this (a regular expression)."""
    return rf"(?s)\A(?!.*(?:{text}))"


_NO_TORCH = _without("load_inline|compile_cuda_extension")

RULES: tuple[Rule, ...] = (
    # What is not declared.
    Rule(
        r"\(at `(?:at|c10|torch)::|'(?:at|c10|torch)' has not been declared|namespace \"(?:at|c10|torch)\" ",
        "torch header",
        "`kit.build` compiles without torch's headers: take pointers and numbers, and pass `kit.stream()` as a "
        "`cudaStream_t`",
        source=_NO_TORCH,
    ),
    Rule(
        _alone(r"cg(?:::\w+)*"),
        "missing header",
        "`cg` is no namespace here: it needs `#include <cooperative_groups.h>` and "
        "`namespace cg = cooperative_groups;`",
    ),
    Rule(
        r"'(?:__global__|__device__|__shared__|cudaStream_t)' (?:does not name|was not declared|has not been)"
        r"|(?P<name>cuda\w*\.h\w*|cooperative_groups\.h|mma\.h): No such file",
        "CUDA in C++",
        "this backend compiles C++ with g++ for the host: there are no kernels, launches or CUDA headers",
    ),
    Rule(
        r"expected primary-expression before '[<>]' token",
        "CUDA in C++",
        "probably a `<<<...>>>` launch, which g++ does not know: this backend compiles C++ for the host",
        certain=False,
        source="<<<",
    ),
    *(
        Rule(_alone(names), "missing header", f"`{{name}}` needs `#include <{header}>`", source=_without(f"<{header}>"))
        for header, names in _HEADERS.items()
    ),
    *(
        Rule(_scoped(scope, names), "missing header", f"`{scope}::{{name}}` needs `#include <{header}>`",
             source=_without(f"<{header}>"))
        for (scope, header), names in _SCOPED.items()
    ),
    Rule(
        _alone(r"rs_\w+|RS_\w+"), "missing header", '`{name}` needs `#include "ringsmith.h"`',
        source=_without(r'"ringsmith\.h"'),
    ),
    Rule(
        r"error: (?P<name>(?:torch|ATen|c10|pybind11)/\S+): No such file",
        "torch header",
        "`kit.build` compiles without torch's headers: take tensors as pointers and sizes as numbers, or build with "
        "`load_inline`",
        source=_NO_TORCH,
    ),
    Rule(
        r"error: (?P<name>[\w./+-]+): No such file",
        "header not here",
        "the header `{name}` does not exist on this machine: write what is needed from it yourself",
    ),
    Rule(
        r"^bindings:\d+: error: '(?P<name>\w+)' was not declared",
        "function not declared",
        "`{name}` is in `functions=` of load_inline, but the C++ source does not declare it{like}",
    ),
    Rule(
        r"wrap_pybind_function\(<",
        "overloaded function",
        "a function named in `functions=` of load_inline is declared twice with different parameters: declaration "
        "and definition must be the same",
    ),
    Rule(
        r"identifier \"(?P<name>[\w:]+)\" is undefined(?! in device)|'(?P<name2>\w+)' was not declared in this scope"
        r"(?:; did you mean '(?P<like>\w+)'\?)?|'(?P<name3>\w+)' (?:does not name a type|has not been declared)"
        r"|\(at `(?P<name4>[\w:]+)`\)",
        "undeclared name",
        "`{name}` is not declared where it is used{like}",
    ),
    Rule(
        r"(?:class|struct|namespace) \"(?P<where>[^\"]+)\" has no member \"(?P<name>\w+)\"|'(?P<where2>[^']+)' has no "
        r"member named '(?P<name2>\w+)'(?:; did you mean '(?P<like>\w+)'\?)?"
        r"|'(?P<name3>\w+)' is not a member of '(?P<where3>[^']+)'(?:; did you mean '(?P<like2>\w+)'\?)?",
        "no such member",
        "{where} has no member `{name}`{like}",
    ),
    # Text that is no C++.
    Rule(
        r"missing closing quote|missing terminating|unterminated",
        "unescaped newline",
        'a C string literal is not closed on its line: probably its `\\n` became a line break, because the Python '
        'string around it is not raw (write r""" or \\\\n)',
        certain=False,
        source=r"""(?<![rR])(?:\"{3}|'{3})""",
    ),
    Rule(r"missing closing quote|missing terminating", "unclosed string",
         "a string literal is not closed on its line"),
    Rule(r"stray '\\'|unrecognized token", "stray backslash",
         "there is a character here that C++ does not know, as a backslash outside of a string", certain=False),
    Rule(r"at the end of the source: expected|expected '\}' at end of input", "unclosed brace",
         "a brace that is opened is never closed"),
    Rule(r"expected (?:a|an|',' or)? ?['\"]?[;,)}\]]['\"]?(?: before|$)|expected ',' or ';'", "syntax",
         "the syntax is wrong here or at the end of the line before"),
    # PTX.
    Rule(
        r"Instruction '(?P<name>(?:wgmma|setmaxnreg)[\w.:]*)' not supported on \.target '(?P<target>sm_\d+)'",
        "target without a",
        "`{name}` needs the target {target}a, not {target}: leave out -arch and -gencode flags of your own; kit and "
        "load_inline compile for this GPU with its `a` features",
    ),
    Rule(
        r"(?:Instruction|Feature|Modifier) '(?P<name>[^']+)' (?:not supported on|requires) \.target '?(?P<target>sm_\w+"
        r"(?: or higher)?)",
        "wrong target",
        "`{name}` does not go with the target that is compiled for ({target} is what ptxas names): leave out -arch "
        "and -gencode flags of your own, or use what this GPU has",
    ),
    Rule(
        r"(?:Arguments mismatch|Argument vector size mismatch|Unexpected number of .*) for instruction "
        r"'(?P<name>[^']+)'",
        "asm operands",
        "`{name}` in inline asm has the wrong number of operands: a .v2 or .v4 needs that many registers in braces, "
        "and a result, an address and each value their own",
    ),
    Rule(r"asm operand index requested is larger", "asm operands",
         "the asm text names an operand %N that is not in its operand lists: they are numbered from 0, outputs first"),
    Rule(
        r"asm operand type size|asm operand must have scalar type|Unexpected instruction types specified",
        "asm operand type",
        'an asm operand does not fit its constraint: "r" is 32 bits, "l" 64 (every pointer), "h" 16, "f" float, '
        '"d" double; a vector goes in element by element',
    ),
    Rule(
        r"Not a name of any known instruction: '(?P<name>[^']+)'|(?:Unknown|Illegal) modifier '(?P<name2>[^']+)'"
        r"|ptxas: (?:Parsing error|syntax error) near '(?P<name3>[^']+)'|Modifier '(?P<name4>[^']+)' requires",
        "asm syntax",
        "inline asm: PTX does not know `{name}` in this place",
    ),
    Rule(
        r"'(?P<name>\w+)' uses too much shared data \((?P<used>\w+) bytes, (?P<limit>\w+) max\)",
        "shared memory",
        "kernel `{name}` declares {used} bytes of __shared__ memory and {limit} is the most: use a smaller tile",
    ),
    Rule(r"Unresolved extern function '(?P<name>\w+)'", "undefined symbol",
         "the device function `{name}` is declared but not defined in this source"),
    # Linking and loading.
    Rule(
        r"undefined symbol: _ZNK?\w*data_ptrI\d+(?P<name>__nv_bfloat162?|__half2?)E",
        "data_ptr type",
        "`data_ptr<{name}>()` does not exist in torch: write `reinterpret_cast<{name}*>(x.data_ptr())`",
    ),
    Rule(r"undefined (?:symbol: |reference to `)(?P<name>cu[A-Z]\w+)", "library missing",
         'driver function `{name}` is not linked: pass flags=["-lcuda"] (load_inline: extra_ldflags)'),
    Rule(r"undefined (?:symbol: |reference to `)(?P<name>nccl\w+|nvshmem\w+)", "library missing",
         "`{name}` is in a library that is not linked here: use symmetric memory instead"),
    Rule(r"undefined (?:symbol: |reference to `)(?P<name>(?:omp|GOMP)_\w+)", "library missing",
         '`{name}` needs flags=["-fopenmp"]'),
    Rule(r"cannot find -l(?P<name>\S+?)(?::|$)", "library missing", "there is no library `{name}` on this machine"),
    Rule(
        r"does not define module export function \(PyInit_(?P<name>\w+)\)",
        "no module",
        "extension {name} exports nothing: name its functions in `functions=`, or write PYBIND11_MODULE with "
        "TORCH_EXTENSION_NAME",
    ),
    Rule(
        r"undefined (?:symbol: |reference to `)(?P<name>[\w:~]+)",
        "undefined symbol",
        "`{name}` is declared and used but nowhere defined with this signature: C++ and CUDA sources must declare it "
        'alike, and extern "C" on both sides or on none',
    ),
    Rule(
        r"multiple definition of [`'](?P<name>[^`']+)'|redefinition of '(?P<name2>[^']+)'"
        r"|\"(?P<name3>\w+)\" has already been (?:defined|declared)",
        "defined twice",
        "`{name}` is defined twice",
    ),
    # Types.
    Rule(
        r"\"(?:c10|at)::(?P<torch>BFloat16|Half) \*\"|'(?:c10|at)::(?P<torch2>BFloat16|Half)\*'",
        "data_ptr type",
        "torch's {torch}* and CUDA's own type are different types: `reinterpret_cast` the pointer",
    ),
    Rule(
        r"\"(?P<given>const void|void) \*\" .*\"(?P<wanted>[^\"]+ \*(?: ?const \*)?)\""
        r"|conversion from '(?P<given2>const void|void)\*' to '(?P<wanted2>[^']+)'",
        "missing cast",
        "C++ does not turn {given}* into {wanted} by itself: cast it",
    ),
    Rule(
        r"(?:__nv_bfloat16|__half|\bhalf)2? \*\" .*incompatible|'(?:__nv_bfloat16|__half|rs_bf16)\*'",
        "pointer type",
        "a pointer to a 16-bit float is given where another type is wanted: convert the elements, not the pointer",
    ),
    Rule(
        r"(?:operator|conversion|constructor|ambiguous|cannot be).*?(?P<name>__nv_bfloat162?|__half2?|rs_bf16|rs_fp16)",
        "16-bit arithmetic",
        "{name} does not mix with other types by itself: convert (__bfloat162float, __float2bfloat16, __half2float, "
        "rs_to_sum, rs_round), compute in float, and convert back",
    ),
    Rule(
        r"overloaded function \"(?P<name>atomic\w+)\" matches .*types are: (?P<types>\(.*\))\)$",
        "atomic type",
        "`{name}` has no form for {types}: cast 64-bit addresses to unsigned long long*, and make the value the "
        "same type as the element",
    ),
    Rule(
        r"overloaded function \"(?:std::)?(?P<name>min|max)\" matches .*types are: (?P<types>\(.*\))\)$"
        r"|no matching function for call to '(?P<name2>min|max)(?P<types2>\(.*?\))'",
        "mixed min/max",
        "`{name}` wants both arguments of the same type, not {types}: cast one",
    ),
    Rule(
        r"calling a __host__ function\(\"(?P<name>.+?)\"\) from a __\w+__ function",
        "host call in kernel",
        "`{name}` is a host function and cannot run in a kernel: mark it __device__, or use plain arrays for "
        "containers",
    ),
    Rule(r"calling a __device__ function\(\"(?P<name>.+?)\"\) from a __host__ function", "device call on host",
         "`{name}` is a __device__ function and cannot be called on the host: launch a kernel"),
    Rule(r"a __global__ function call must be configured", "launch without <<<>>>",
         "a kernel is called without <<<blocks, threads, shared, stream>>>"),
    Rule(
        r"declaration is incompatible with previous \"(?P<name>\w+)\"",
        "shared redeclared",
        "`extern __shared__ {name}` is declared with two types (a template instantiated twice does that): declare it "
        "as unsigned char and cast",
        source=r"extern\s+__shared__",
    ),
    Rule(
        r"variable length array cannot have static storage",
        "dynamic shared size",
        "the size of a __shared__ array must be a constant: make it a template parameter, or use extern __shared__ "
        "and the third launch parameter",
    ),
    Rule(r"may not have extern \"C\" linkage|template with C linkage|templates must have C\+\+ linkage",
         'template in extern "C"', 'a template cannot be extern "C": only launchers are; put it outside'),
    Rule(r"overloaded function \"(?P<name>\w+)\" has \"C\" linkage", 'overload in extern "C"',
         'two extern "C" functions are named `{name}`: give each a name of its own'),
    Rule(r"too (?P<how>few|many) arguments to function '(?P<name>[^']+)'", "wrong argument count",
         "the call has too {how} arguments for `{name}`"),
    Rule(r"too (?P<how>few|many) arguments in function call", "wrong argument count",
         "the call has too {how} arguments"),
    Rule(r"modifiable lvalue|read-only", "const", "a const element is written to: the parameter must not be const"),
    Rule(
        r"\"const (?P<given>[^\"]+ \*)\" .*\"(?P=given)\"|from 'const (?P<given2>[^']+\*)' to '(?P=given2)'",
        "const",
        "a const {given} is given where it may be written to",
    ),
    Rule(
        r"argument of type \"(?P<given>[^\"]+)\" is incompatible with parameter of type \"(?P<wanted>[^\"]+)\""
        r"|a value of type \"(?P<given2>[^\"]+)\" cannot be .* of type \"(?P<wanted2>[^\"]+)\""
        r"|(?:cannot convert|invalid conversion from) '(?P<given3>[^']+)' to '(?P<wanted3>[^']+)'",
        "type mismatch",
        "{given} is given where {wanted} is wanted",
    ),
    Rule(r"argument list for [\w ]*template \"(?P<name>[^\"]+)\" is missing", "template arguments missing",
         "`{name}` names a template, not a function: write its arguments in <>, or call the function you meant{like}"),
    Rule(r"static assertion failed", "static assertion", "a static_assert of the source does not hold"),
    Rule(r"target specific option mismatch", "CPU feature",
         "these instructions are not among those that are compiled for (-march=native is this machine's)"),
    Rule(
        r"(?:Unknown option|Unsupported gpu architecture|unrecognized command-line option) '(?P<name>[^']+)'",
        "compiler flag",
        "the compiler does not know the flag or target `{name}`: leave it out",
    ),
    # Triton.
    Rule(r"has no attribute '(?P<name>\w+)'", "no such name", "`{name}` does not exist in triton.language",
         source=r"\bimport triton"),
    Rule(r"NameError\(['\"](?P<name>\w+) is not defined", "undeclared name", "`{name}` is not defined{like}"),
    Rule(r"Cannot access global variable (?P<name>\w+)", "Triton global",
         "a @triton.jit function cannot read the global `{name}`: pass it as a tl.constexpr argument"),
    Rule(r"must be a power of 2|must be of type tl.constexpr", "Triton range",
         "the bounds of tl.arange must be tl.constexpr powers of 2: take the next power and mask the rest"),
    Rule(r"incompatible dimensions|equal reduction dimensions|make_shape_compatible", "Triton shapes",
         "the blocks that meet here have different shapes"),
    Rule(r"Loop-carried variable (?P<name>\w+) ", "Triton loop type",
         "`{name}` changes its type or shape in the loop: convert what is assigned with .to(...)"),
    Rule(r"unsupported AST node type: (?P<name>\w+)", "Triton syntax", "Triton cannot compile Python's `{name}`"),
    Rule(r"unexpected keyword argument '(?P<name>\w+)'", "wrong arguments", "there is no argument `{name}`"),
)  # fmt: skip
