// ringsmith.h: what kernels need to talk to peers through symmetric memory, for CUDA (nvcc) and C++ (g++).
//
// From Python a launcher gets `buf.ptrs` as `T* const*` (address of every rank's buffer) and `buf.signals` as
// `uint32_t* const*` (address of every rank's signal pad). All of them are ordinary pointers: a load reads the peer's
// memory, a store writes it.
//
// The one rule of ordering: write data, then raise a flag with *release*; see the flag with *acquire*, then read data.
// Nothing else orders one rank's writes before another rank's reads.
//
// A signal pad is 16384 words, zero at the start. The barriers below divide it into 1024 slots of 16 words:
//     pad[16 * slot + s] on rank r  =  how many barriers of this slot rank s has announced to rank r
//     pad[16 * slot + r] on rank r  =  how many barriers of this slot rank r itself has entered (its epoch)
// Counters only grow (and may wrap), so nothing must be reset, the state survives from call to call, and a replayed CUDA
// graph works: a round number passed from the host would be frozen into the graph. Do not write these words yourself
// in slots that a barrier uses; for flags of your own take a buffer of your own or slots that no barrier uses.
//
// Misuse that hangs: a rank, or a block, that skips a barrier others enter; different grids on different ranks; more
// blocks than the GPU holds at once (a waiting block never makes room for the one that its peer waits for: use
// rs_resident_blocks). Misuse that gives wrong numbers: one slot used by two kernels that run at the same time; a block
// that reads what *another* block of its peer wrote (the barrier joins blocks of equal index only).
#pragma once

#include <cstdint>
#include <cstring>

enum { RS_MAX_RANKS = 16, RS_SLOT_WORDS = 16, RS_SLOTS = 1024 };

// True when a counter has reached a value, also after it has wrapped around.
#define RS_REACHED(counter, value) ((int32_t)((counter) - (value)) >= 0)

// 16-bit floats as they lie in memory. Arithmetic is done in float.
struct rs_bf16 { uint16_t bits; };
struct rs_fp16 { uint16_t bits; };

// The type to add T's in: float, and double for double.
template <class T> struct rs_sum_of { using type = float; };
template <> struct rs_sum_of<double> { using type = double; };
template <class T> using rs_sum = typename rs_sum_of<T>::type;

#ifdef __CUDACC__
// ------------------------------------------------------------------------------------------------------------- CUDA

#define RS_DEVICE __device__ __forceinline__

// Raise a flag, usually a peer's. Everything this thread wrote or saw before (other threads' writes too, if a
// __syncthreads() lies between) is visible to whoever sees the flag by rs_wait. Scope .sys, because .gpu orders nothing
// for another GPU. It costs a MEMBAR.SYS: the wait until all earlier writes have arrived. So: one flag per block, not
// one per thread.
RS_DEVICE void rs_signal(uint32_t* flag, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// Spin until a flag (of this rank's own pad: polling a peer's would load the link) has reached `value`. Acquire: a later
// load cannot have been served before, nor from a stale line of L1. Other threads of the block may read after a
// __syncthreads().
RS_DEVICE void rs_wait(const uint32_t* flag, uint32_t value) {
    uint32_t seen;
    do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    } while (!RS_REACHED(seen, value));
}

// How many barriers of this slot this rank has entered. The same on all ranks, and kept in device memory: its lowest bit
// chooses the half of a double buffer even when a CUDA graph is replayed. Read it before the barrier, not across it.
RS_DEVICE uint32_t rs_epoch(uint32_t* const* signals, int rank, int slot) {
    return *(const volatile uint32_t*)(signals[rank] + RS_SLOT_WORDS * slot + rank);
}

// Barrier of one block with the blocks of the same slot on all other ranks (pass blockIdx.x as slot). Called by every
// thread of a one-dimensional block of at least `world` threads. What any thread of these blocks wrote before it, to
// local or to peer memory, is visible to all of them after it.
RS_DEVICE void rs_barrier_block(uint32_t* const* signals, int rank, int world, int slot) {
    const int peer = threadIdx.x;
    uint32_t* own = signals[rank] + RS_SLOT_WORDS * slot;
    uint32_t epoch = 0;
    if (peer < world) epoch = *(volatile uint32_t*)(own + rank) + 1;
    __syncthreads();  // all writes of the block come before the signals; all have read the epoch before it changes
    if (peer < world) {
        if (peer == rank) {
            *(volatile uint32_t*)(own + rank) = epoch;
        } else {
            rs_signal(signals[peer] + RS_SLOT_WORDS * slot + rank, epoch);
            rs_wait(own + peer, epoch);
        }
    }
    __syncthreads();  // no thread reads before all peers have arrived
}

// 16-byte accesses, local or peer; the address must be a multiple of 16. Plain accesses on purpose: __ldg and
// ld.global.nc may return stale data for memory that a peer changes while the kernel runs. The compiler cannot know that
// an address read from a table is in global memory: told so, it takes LDG and STG instead of the slower generic LD and ST.
RS_DEVICE uint4 rs_ld16(const void* address) {
    __builtin_assume(__isGlobal(address));
    return *(const uint4*)address;
}
RS_DEVICE void rs_st16(void* address, uint4 value) {
    __builtin_assume(__isGlobal(address));
    *(uint4*)address = value;
}

// Elements i .. i+15/sizeof(T) of an array of n, for arrays of any alignment and any n: zeros from n on.
template <class T> RS_DEVICE uint4 rs_ld16_part(const T* array, int64_t i, int64_t n) {
    constexpr int width = 16 / sizeof(T);
    if (i + width <= n && (uintptr_t)(array + i) % 16 == 0) return rs_ld16(array + i);
    union { T element[width]; uint4 word; } part;
    part.word = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < width; ++k)
        if (i + k < n) part.element[k] = array[i + k];
    return part.word;
}

// The same for a store: nothing is written from n on.
template <class T> RS_DEVICE void rs_st16_part(T* array, int64_t i, int64_t n, uint4 value) {
    constexpr int width = 16 / sizeof(T);
    if (i + width <= n && (uintptr_t)(array + i) % 16 == 0) return rs_st16(array + i, value);
    union { T element[width]; uint4 word; } part;
    part.word = value;
#pragma unroll
    for (int k = 0; k < width; ++k)
        if (i + k < n) array[i + k] = part.element[k];
}

RS_DEVICE float rs_to_sum(float x) { return x; }
RS_DEVICE double rs_to_sum(double x) { return x; }
RS_DEVICE float rs_to_sum(rs_bf16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
RS_DEVICE float rs_to_sum(rs_fp16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
RS_DEVICE void rs_round(float& y, float x) { y = x; }
RS_DEVICE void rs_round(double& y, double x) { y = x; }
RS_DEVICE void rs_round(rs_bf16& y, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
RS_DEVICE void rs_round(rs_fp16& y, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }

// sum[k] += element k of a 16-byte word. Added in float, so that the result is rounded to T once, by rs_pack16.
template <class T> RS_DEVICE void rs_add16(rs_sum<T> (&sum)[16 / sizeof(T)], uint4 word) {
    union { uint4 word; T element[16 / sizeof(T)]; } in;
    in.word = word;
#pragma unroll
    for (int k = 0; k < 16 / (int)sizeof(T); ++k) sum[k] += rs_to_sum(in.element[k]);
}

template <class T> RS_DEVICE uint4 rs_pack16(const rs_sum<T> (&sum)[16 / sizeof(T)]) {
    union { uint4 word; T element[16 / sizeof(T)]; } out;
#pragma unroll
    for (int k = 0; k < 16 / (int)sizeof(T); ++k) rs_round(out.element[k], sum[k]);
    return out.word;
}

// How many blocks of a kernel the GPU holds at once: the largest grid whose blocks may wait for one another or for peers.
template <class Kernel> inline int rs_resident_blocks(Kernel kernel, int threads, size_t shared_bytes = 0) {
    int device = 0, processors = 0, per_processor = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, threads, shared_bytes);
    const int blocks = processors * per_processor;
    return blocks < 1 ? 1 : blocks < RS_SLOTS ? blocks : RS_SLOTS;
}

// kit calls this after every launcher: a launch that failed becomes a Python exception. Here, not in kit, because nvcc
// links the CUDA runtime statically and each copy of the runtime keeps its own last error.
extern "C" __attribute__((weak, used, visibility("default"))) int rs_last_error(char* text, int size) {
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess && text && size > 0) {
        std::strncpy(text, cudaGetErrorString(error), (size_t)size - 1);
        text[size - 1] = 0;
    }
    return (int)error;
}

#else
// --------------------------------------------------------------------------------------------------- C++, ranks are
// processes on one host and symmetric memory is shared memory

#include <sched.h>

#define RS_SYSTEM_YIELD_AFTER 2000

// Raise a flag. All writes of this rank before it are visible to whoever sees it by rs_wait.
inline void rs_signal(uint32_t* flag, uint32_t value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }

// Spin until a flag has reached `value`. Yields the core after a while: ranks may outnumber cores, and the rank that this
// one waits for may need the core that it spins on.
inline void rs_wait(const uint32_t* flag, uint32_t value) {
    for (int spins = 0; !RS_REACHED(__atomic_load_n(flag, __ATOMIC_ACQUIRE), value); ++spins) {
        if (spins >= RS_SYSTEM_YIELD_AFTER) {
            sched_yield();
            continue;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }
}

// Barrier of all ranks. What any rank wrote before it is visible to all after it.
inline void rs_barrier(uint32_t* const* signals, int rank, int world, int slot) {
    uint32_t* own = signals[rank] + RS_SLOT_WORDS * slot;
    const uint32_t epoch = own[rank] + 1;
    own[rank] = epoch;
    for (int peer = 0; peer < world; ++peer)
        if (peer != rank) rs_signal(signals[peer] + RS_SLOT_WORDS * slot + rank, epoch);
    for (int peer = 0; peer < world; ++peer)
        if (peer != rank) rs_wait(own + peer, epoch);
}

// Written so that the compiler vectorises loops over them.
inline float rs_to_sum(float x) { return x; }
inline double rs_to_sum(double x) { return x; }
inline float rs_to_sum(rs_bf16 x) {
    const uint32_t bits = (uint32_t)x.bits << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}
inline void rs_round(float& y, float x) { y = x; }
inline void rs_round(double& y, double x) { y = x; }
inline void rs_round(rs_bf16& y, float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to nearest, ties to even
    y.bits = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);  // a NaN stays one
}
#if defined(__FLT16_MANT_DIG__)
inline float rs_to_sum(rs_fp16 x) {
    _Float16 y;
    std::memcpy(&y, &x.bits, 2);
    return (float)y;
}
inline void rs_round(rs_fp16& y, float x) {
    const _Float16 rounded = (_Float16)x;
    std::memcpy(&y.bits, &rounded, 2);
}
#endif

#endif
