// Tensors and their functions; torch's own also brings nn, optim, data and jit, half of its cost.
#pragma once
#include <torch/types.h>

#include <ATen/core/grad_mode.h>
namespace torch {
using NoGradGuard = at::NoGradGuard;
}
