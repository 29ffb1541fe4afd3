// What binds functions to Python, without torch's nn.Module. All type casters are here: one that is missing
// would not fail to compile, it would fail when called.
#pragma once
#include <torch/types.h>

#ifdef RINGSMITH_CHECK  // only the candidate's own errors matter: no pybind11, nothing is generated
#define PYBIND11_MODULE(name, variable) template <class RingsmithModule> void ringsmith_module(RingsmithModule& variable)
namespace torch {
template <class F> int wrap_pybind_function(F&&);
}
#else
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>
#endif
