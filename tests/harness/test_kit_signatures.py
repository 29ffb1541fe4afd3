"""What `kit.build` reads from C and C++ sources before it compiles them."""

import ctypes as c
import time

import pytest

from harness.kit import KitError, parse_functions

P = c.c_void_p


def types(source: str) -> dict:
    return {f.name: (f.returns, [kind for _, kind in f.parameters]) for f in parse_functions(source).values()}


SIGNATURES = {
    "plain": ('extern "C" void f(int n, float x) { }', (None, [c.c_int, c.c_float])),
    "no parameters": ('extern "C" int f() { return 1; }', (c.c_int, [])),
    "void parameters": ('extern "C" int f(void) { return 1; }', (c.c_int, [])),
    "pointers": (
        'extern "C" void f(const float* a, float *b, void * const * c, float** d) {}',
        (None, [P, P, P, P]),
    ),
    "array parameter": ('extern "C" void f(float a[], int b[4]) {}', (None, [P, P])),
    "restrict": ('extern "C" void f(float* __restrict__ a, const int* __restrict b) {}', (None, [P, P])),
    "const by value": ('extern "C" void f(const int n, int const m) {}', (None, [c.c_int, c.c_int])),
    "foreign pointer": ('extern "C" void f(const rs_bf16* x, uint32_t* const* s) {}', (None, [P, P])),
    "fixed widths": (
        'extern "C" void f(int64_t a, uint32_t b, size_t d, std::int8_t e, std::size_t g) {}',
        (None, [c.c_int64, c.c_uint32, c.c_size_t, c.c_int8, c.c_size_t]),
    ),
    "wordy integers": (
        'extern "C" void f(unsigned a, unsigned long long b, long int d, unsigned char e, short g) {}',
        (None, [c.c_uint, c.c_ulonglong, c.c_long, c.c_ubyte, c.c_short]),
    ),
    "unnamed": (
        'extern "C" void f(int, unsigned int, const float*, unsigned long, cudaStream_t) {}',
        (None, [c.c_int, c.c_uint, P, c.c_ulong, P]),
    ),
    "stream": ('extern "C" void f(cudaStream_t stream, bool on) {}', (None, [P, c.c_bool])),
    "returns a pointer": ('extern "C" const char *f() { return ""; }', (P, [])),
    "returns an error code": ('extern "C" cudaError_t f(int n) { return 0; }', (c.c_int, [c.c_int])),
    "returns a wide integer": ('extern "C" unsigned long long f() { return 0; }', (c.c_ulonglong, [])),
    "default argument": ('extern "C" void f(int n = 4, float x = 1.5f) {}', (None, [c.c_int, c.c_float])),
    "many lines": (
        'extern "C"\nvoid\nf(const float* a,   // the input\n  /* how many */ int n,\n\n  float s)\n{\n}',
        (None, [P, c.c_int, c.c_float]),
    ),
    "noexcept, inline": ('extern "C" inline void f(int n) noexcept { }', (None, [c.c_int])),
    "attribute": ('extern "C" __attribute__((visibility("default"))) void f(int n) {}', (None, [c.c_int])),
    "two dimensions in a body": ('extern "C" int f(int n) { int a[2][2]; return a[0][n]; }', (c.c_int, [c.c_int])),
    "comment in parameters": ('extern "C" void f(int n /* , float x */) {}', (None, [c.c_int])),
    "host and device": ('extern "C" __host__ __device__ int f(int n) { return n; }', (c.c_int, [c.c_int])),
    "in a block": ('extern "C" {\nvoid f(int n) { if (n) { n = 1; } }\n}', (None, [c.c_int])),
    "block guarded by the preprocessor": (
        '#ifdef __cplusplus\nextern "C" {\n#endif\nvoid f(int n) {}\n#ifdef __cplusplus\n}\n#endif\n',
        (None, [c.c_int]),
    ),
    "through a macro": ('#define API extern "C"\nAPI void f(float x) {}', (None, [c.c_float])),
    "macros of all kinds around": (
        '#define N 4\n#define BEGIN {\n#define SUM(a, b) \\\n  { (a) + (b); \nextern "C" void f(int n) { n += N; }',
        (None, [c.c_int]),
    ),
}


@pytest.mark.parametrize(("source", "expected"), SIGNATURES.values(), ids=SIGNATURES)
def test_a_signature_is_read(source, expected):
    assert types(source) == {"f": expected}


def test_every_function_of_a_block_and_nothing_else():
    source = """
    #include <cstdint>
    template <class T> static void helper(T* x, std::vector<int>& v) { for (;;) { break; } }
    namespace { struct Pair { int a; int b; }; Pair make(Pair p) { return p; } }
    extern "C" {
    struct Config { int n; float x; };
    static float square(float4 x) { return x.x; }
    __global__ void kernel(float4 x, int n) { if (n) { } }
    __device__ float4 on_device(float4 x) { return x; }
    enum Kind { A, B };
    void declared_only(Config c);
    int first(const float* x, int n) {
        const char* text = "} void wrong(int n) {";
        char brace = '}';  // }
        while (n) { if (n > 1) { n--; } else { break; } }
        return n;
    }
    double second() { return 1.0; }
    }
    void cpp_linkage(std::string s) {}
    extern "C" void third(float* x) { helper(x); }
    """
    assert types(source) == {
        "first": (c.c_int, [P, c.c_int]),
        "second": (c.c_double, []),
        "third": (None, [P]),
    }


@pytest.mark.parametrize(
    "source",
    [
        "",
        "void f(int n) {}",
        '// extern "C" void f(int n) {}',
        '/* extern "C" { void f(int n) {} } */',
        'const char* s = "extern \\"C\\" void f(int n) {";',
        'const char* s = R"(extern "C" void f(int n) { )";',
        'extern "C" int puts(const char*);',
        'extern "C" int puts(const char*);\nvoid f(std::vector<int>& v) {}',
        'extern "C" { int puts(const char*); }\nvoid f(std::vector<int>& v) {}',
        'extern "C" static void f(int n) {}',
        'extern "C" __global__ void f(float4 n) {}',
        'extern "C" __global__ void __launch_bounds__(256) f(float4 n) {}',
        'extern "C" int counter;',
    ],
)
def test_what_is_no_exported_function_is_not_read(source):
    assert types(source) == {}


@pytest.mark.parametrize(
    ("parameters", "kind"),
    [
        ("Config c", "Config"),
        ("struct Config c", "struct Config"),
        ("float4 v", "float4"),
        ("int n, __half h", "__half"),
        ("std::string s", "string"),
        ("const float& x", "float& x"),
        ("float &x", "float &x"),
        ("int& n", "int& n"),
        ("rs_bf16 x", "rs_bf16"),
    ],
)
def test_a_type_that_cannot_cross_is_named_with_its_function(parameters, kind):
    with pytest.raises(KitError) as caught:
        parse_functions(f'extern "C" void launch({parameters}) {{}}')
    message = str(caught.value)
    assert "launch" in message and repr(kind) in message and "\n" not in message


def test_a_returned_structure_is_refused():
    with pytest.raises(KitError, match=r"launch.*float4"):
        parse_functions('extern "C" float4 launch(int n) { }')


def test_the_examples_are_read():
    from pathlib import Path

    examples = list((Path(__file__).parents[2] / "prompts" / "examples").glob("*/*.py"))
    assert examples
    for path in examples:
        text = path.read_text()
        if "kit.build" in text:
            found = parse_functions(text.split('r"""')[1].split('"""')[0])
            assert found, path.name


def test_a_long_source_is_read_quickly():
    body = "for (int i = 0; i < n; ++i) { x[i] = x[i] * 2.0f + (float)i; }\n" * 3000
    source = f'static void g(float* x, int n) {{\n{body}}}\nextern "C" {{\nvoid f(float* x, int n) {{\n{body}}}\n}}\n'
    started = time.perf_counter()
    assert types(source) == {"f": (None, [P, c.c_int])}
    assert time.perf_counter() - started < 2
