"""Which compile errors are certain: only those with which the declarations left out can have nothing to do."""

import pytest

from harness import certainty

FEW = r"""
# 1 "few.h" 1
#define BOTH 1
namespace torch { struct Tensor { int size(int where); }; int empty(int amount); namespace detail {} }
extern "C" int c_function(int argument, int (*callback)(int inner));
typedef struct { float member_x; } float2;
struct __nv_bfloat16 { unsigned short bits; };
"""
MORE = r"""
# 1 "more.h" 1
#define ONLY_MACRO(x) x
enum { ENUMERATOR_A };
template <class T, int parameter> struct Box { friend int friendly(Box, int); int inside; };
namespace { int hidden_variable; }
namespace torch { namespace nn { struct Linear { int weight; }; int (*handler)(int); } }
namespace torch { inline int late(int local) { int body; return 0; } }
static const char* text = "quoted_word {"; char brace = '{';
struct Completed { Completed(__nv_bfloat16); };
"""


def headers(text):
    found = certainty.read(text + '# 1 "main.cu" 2\nint own_name;\n', "main.cu")
    assert found is not None
    return found


FULL, CHECK = headers(FEW + MORE), headers(FEW)


def nvcc(message, line=3, file="candidate.py"):
    return f"{file}({line}): error: {message}\n  some code\n       ^\n\n1 error detected in the compilation of x\n"


def gcc(message, line=3):
    return f"candidate.py: In function 'void f()':\ncandidate.py:{line}:5: error: {message}\n    3 | code\n"


SOURCE = '#include <torch/extension.h>\n#line 1 "candidate.py"\nint a;\nint b;\nint c = torch::empty(1)\nint d;\n'


def certain(output, source=SOURCE):
    errors = certainty.errors(output)
    return bool(errors) and certainty.is_certain(errors[0], source, "main.cu", FULL, lambda: CHECK)


@pytest.mark.parametrize(
    "output",
    [
        nvcc('identifier "idx" is undefined'),
        nvcc('identifier "argument" is undefined'),  # a parameter somewhere is not a declaration here
        nvcc('identifier "inner" is undefined'),
        nvcc('identifier "inside" is undefined'),
        nvcc('identifier "parameter" is undefined'),
        nvcc('identifier "local" is undefined'),
        nvcc('identifier "body" is undefined'),
        nvcc('identifier "quoted_word" is undefined'),
        nvcc('identifier "own_name" is undefined'),
        nvcc('namespace "torch" has no member "empty_lik"'),
        nvcc('class "torch::Tensor" has no member "data_pointer"'),
        nvcc('expected a ";"'),
        nvcc('no suitable user-defined conversion from "float *" to "float2" exists'),
        gcc("'idx' was not declared in this scope"),
        gcc("'idx' was not declared in this scope; did you mean 'idy'?"),
        gcc("'empty_lik' is not a member of 'torch'"),
        gcc("expected ',' or ';' before 'int'"),
    ],
)
def test_certain(output):
    assert certain(output)


@pytest.mark.parametrize(
    "output",
    [
        nvcc('identifier "ONLY_MACRO" is undefined'),
        nvcc('identifier "ENUMERATOR_A" is undefined'),
        nvcc('identifier "Box" is undefined'),
        nvcc('identifier "hidden_variable" is undefined'),
        nvcc('namespace "torch" has no member "nn"'),
        nvcc('namespace "torch" has no member "late"'),
        nvcc('namespace "torch::nn" has no member "handler"'),
        nvcc('class "torch::Tensor" has no member "weight"'),
        nvcc('name followed by "::" must be a class or namespace name'),
        nvcc('incomplete type "Completed" is not allowed'),
        nvcc('no instance of overloaded function "torch::empty" matches the argument list'),
        nvcc('no suitable user-defined conversion from "__nv_bfloat16" to "float2" exists'),
        nvcc("static assertion failed"),
        nvcc('identifier "idx" is undefined', file="torch/extension.h"),
        nvcc('identifier "idx" is undefined', line=300),
        nvcc('identifier "idx" is undefined').replace("^\n", "^\n          detected during instantiation of f\n"),
        "nvcc fatal   : something\n" + nvcc('identifier "idx" is undefined'),
        gcc("'nn' is not a member of 'torch'"),
        gcc("'Box' does not name a type"),
        gcc("expected class-name before '{' token"),
        gcc("expected type-specifier before 'Box'"),
        gcc("'idx' was not declared in this scope, and no declarations were found by argument-dependent lookup"),
        "make: something else\n",
    ],
)
def test_not_certain(output):
    assert not certain(output)


@pytest.mark.parametrize(
    ("message", "source"),
    [
        ('identifier "g" is undefined', "\n#ifdef ONLY_MACRO\nint g;\n#endif\n"),
        ('identifier "g" is undefined', "\n\n#if __has_include(<torch/nn.h>)\nint g;\n#endif\n"),
        ('identifier "friendly" is undefined', "\n\nint x = friendly(a, 1);\n"),
        ('identifier "late" is undefined', "\nusing namespace torch;\nint x = late;\n"),
        ('expected a ";"', "\n\nONLY_MACRO(int) x y;\n"),
        ('expected a ";"', "\nLinear layer;\nint x int y;\n"),
        ('expected a ";"', "\nPYBIND11_MODULE(a, m) {\nm.attr(1).cast<int>() }\n"),
    ],
)
def test_sources_that_the_full_headers_may_read_differently(message, source):
    assert not certain(nvcc(message, file="main.cu"), source)


def test_a_condition_that_the_headers_do_not_decide_is_no_obstacle():
    assert certain(
        nvcc('identifier "idx" is undefined', file="main.cu"), "\n#if __CUDA_ARCH__ >= 900\nint a = idx;\n#endif\n"
    )


def test_text_that_is_not_understood_says_nothing():
    assert certainty.read("namespace a { int x;\n", "main.cu") is None
    assert certainty.read("}\n", "main.cu") is None
    assert certainty.directives("/*\n#include <a>\n*/\n#include <b>\n") is None
    assert certainty.directives('int a;\n#include <b>\n#line 7 "c"\n#define X \\\n  1\nint c;\n') == (
        "#include <b>\n#define X \\\n  1\n"
    )
