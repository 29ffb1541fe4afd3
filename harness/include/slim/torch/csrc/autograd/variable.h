#pragma once
#include <ringsmith_used.h>
#ifdef RINGSMITH_FACTORIES
#include_next <torch/csrc/autograd/variable.h>
#endif
