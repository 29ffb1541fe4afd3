// Left out: declarations of kernels inside torch, which candidates do not call.
#pragma once
