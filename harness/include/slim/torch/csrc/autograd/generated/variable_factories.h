// torch::empty and the like. Without requires_grad they do what at::empty does, which `torch` sees by its
// using-directive.
#pragma once
#include <ringsmith_used.h>
#ifdef RINGSMITH_FACTORIES
#include_next <torch/csrc/autograd/generated/variable_factories.h>
#endif
