// at::globalContext() and what it needs; most headers include it for nothing.
#pragma once
#include <ringsmith_used.h>
#ifdef RINGSMITH_CONTEXT
#include_next <ATen/Context.h>
#endif
