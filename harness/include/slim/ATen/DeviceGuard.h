#pragma once
#include <ringsmith_used.h>
#ifdef RINGSMITH_DEVICE_OF
#include_next <ATen/DeviceGuard.h>
#else
#include <c10/core/DeviceGuard.h>
#endif
