// Of about 1300 functions, those that the source names: harness/slim_headers.py writes that file.
#pragma once
#include <ringsmith_used.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Scalar.h>
#include <c10/core/TensorOptions.h>
#include <ringsmith_functions.h>
