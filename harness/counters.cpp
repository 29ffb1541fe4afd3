// Hardware counters of this process's kernels by CUPTI's range profiler, one pass and no replay: a kernel that waits for
// a peer is run once, as always. For harness/counters.py, which compiles and loads it in a rank.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

namespace {

std::string failure;
CUpti_Profiler_Host_Object* host = nullptr;
CUpti_RangeProfiler_Object* profiler = nullptr;
std::vector<const char*> metrics;
std::vector<uint8_t> config, counters;
bool by_kernel = false;

bool failed(CUptiResult result, const char* call) {
    if (result == CUPTI_SUCCESS) return false;
    const char* name = nullptr;
    cuptiGetResultString(result, &name);
    failure = std::string(call) + ": " + (name ? name : "error") + " (" + std::to_string((int)result) + ")";
    return true;
}

// A struct of CUPTI's, its size filled in.
#define RS_PARAMS(type, name) \
    type name;                \
    memset(&name, 0, sizeof name); \
    name.structSize = type##_STRUCT_SIZE
#define RS_TRY(call, params) \
    if (failed(call(&params), #call)) return -1

// Which passes the metrics need, the configuration in `config`. `host` is open afterwards.
int configure(int device, const char* const* names, int count) {
    RS_PARAMS(CUpti_Profiler_Initialize_Params, init);
    RS_TRY(cuptiProfilerInitialize, init);
    RS_PARAMS(CUpti_Device_GetChipName_Params, chip);
    chip.deviceIndex = device;
    RS_TRY(cuptiDeviceGetChipName, chip);
    RS_PARAMS(CUpti_Profiler_Host_Initialize_Params, open);
    open.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    open.pChipName = chip.pChipName;
    RS_TRY(cuptiProfilerHostInitialize, open);
    host = open.pHostObject;
    metrics.assign(names, names + count);
    RS_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, add);
    add.pHostObject = host;
    add.ppMetricNames = metrics.data();
    add.numMetrics = metrics.size();
    RS_TRY(cuptiProfilerHostConfigAddMetrics, add);
    RS_PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size);
    size.pHostObject = host;
    RS_TRY(cuptiProfilerHostGetConfigImageSize, size);
    config.assign(size.configImageSize, 0);
    RS_PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, image);
    image.pHostObject = host;
    image.configImageSize = config.size();
    image.pConfigImage = config.data();
    RS_TRY(cuptiProfilerHostGetConfigImage, image);
    RS_PARAMS(CUpti_Profiler_Host_GetNumOfPasses_Params, passes);
    passes.configImageSize = config.size();
    passes.pConfigImage = config.data();
    RS_TRY(cuptiProfilerHostGetNumOfPasses, passes);
    return (int)passes.numOfPasses;
}

int release() {
    if (profiler) {
        RS_PARAMS(CUpti_RangeProfiler_Disable_Params, disable);
        disable.pRangeProfilerObject = profiler;
        profiler = nullptr;
        RS_TRY(cuptiRangeProfilerDisable, disable);
    }
    if (host) {
        RS_PARAMS(CUpti_Profiler_Host_Deinitialize_Params, close);
        close.pHostObject = host;
        host = nullptr;
        RS_TRY(cuptiProfilerHostDeinitialize, close);
    }
    return 0;
}

int begin(int device, void* context, const char* const* names, int count, int per_kernel, int max_ranges) {
    const int passes = configure(device, names, count);
    if (passes < 0) return -1;
    if (passes != 1) {
        failure = "these counters need " + std::to_string(passes) + " passes";
        return -1;
    }
    by_kernel = per_kernel;
    RS_PARAMS(CUpti_RangeProfiler_Enable_Params, enable);
    enable.ctx = (CUcontext)context;
    RS_TRY(cuptiRangeProfilerEnable, enable);
    profiler = enable.pRangeProfilerObject;
    RS_PARAMS(CUpti_RangeProfiler_GetCounterDataSize_Params, size);
    size.pRangeProfilerObject = profiler;
    size.pMetricNames = metrics.data();
    size.numMetrics = metrics.size();
    size.maxNumOfRanges = max_ranges;
    size.maxNumRangeTreeNodes = max_ranges;
    RS_TRY(cuptiRangeProfilerGetCounterDataSize, size);
    counters.assign(size.counterDataSize, 0);
    RS_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, data);
    data.pRangeProfilerObject = profiler;
    data.counterDataSize = counters.size();
    data.pCounterData = counters.data();
    RS_TRY(cuptiRangeProfilerCounterDataImageInitialize, data);
    RS_PARAMS(CUpti_RangeProfiler_SetConfig_Params, set);
    set.pRangeProfilerObject = profiler;
    set.configSize = config.size();
    set.pConfig = config.data();
    set.counterDataImageSize = counters.size();
    set.pCounterDataImage = counters.data();
    set.range = by_kernel ? CUPTI_AutoRange : CUPTI_UserRange;
    // "User" replay: nobody replays, there is one pass.
    set.replayMode = CUPTI_UserReplay;
    set.maxRangesPerPass = max_ranges;
    set.numNestingLevels = 1;
    set.minNestingLevel = 1;
    set.targetNestingLevel = 1;
    RS_TRY(cuptiRangeProfilerSetConfig, set);
    RS_PARAMS(CUpti_RangeProfiler_Start_Params, start);
    start.pRangeProfilerObject = profiler;
    RS_TRY(cuptiRangeProfilerStart, start);
    return 0;
}

int push() {
    if (by_kernel) return 0;
    RS_PARAMS(CUpti_RangeProfiler_PushRange_Params, push);
    push.pRangeProfilerObject = profiler;
    push.pRangeName = "calls";
    RS_TRY(cuptiRangeProfilerPushRange, push);
    return 0;
}

int end(double* values, int max_ranges) {
    if (!by_kernel) {
        RS_PARAMS(CUpti_RangeProfiler_PopRange_Params, pop);
        pop.pRangeProfilerObject = profiler;
        RS_TRY(cuptiRangeProfilerPopRange, pop);
    }
    RS_PARAMS(CUpti_RangeProfiler_Stop_Params, stop);
    stop.pRangeProfilerObject = profiler;
    RS_TRY(cuptiRangeProfilerStop, stop);
    RS_PARAMS(CUpti_RangeProfiler_DecodeData_Params, decode);
    decode.pRangeProfilerObject = profiler;
    RS_TRY(cuptiRangeProfilerDecodeData, decode);
    RS_PARAMS(CUpti_RangeProfiler_GetCounterDataInfo_Params, info);
    info.pCounterDataImage = counters.data();
    info.counterDataImageSize = counters.size();
    RS_TRY(cuptiRangeProfilerGetCounterDataInfo, info);
    const int ranges = (int)info.numTotalRanges < max_ranges ? (int)info.numTotalRanges : max_ranges;
    for (int i = 0; i < ranges; ++i) {
        RS_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, evaluate);
        evaluate.pHostObject = host;
        evaluate.pCounterDataImage = counters.data();
        evaluate.counterDataImageSize = counters.size();
        evaluate.rangeIndex = i;
        evaluate.ppMetricNames = metrics.data();
        evaluate.numMetrics = metrics.size();
        evaluate.pMetricValues = values + (size_t)i * metrics.size();
        RS_TRY(cuptiProfilerHostEvaluateToGpuValues, evaluate);
    }
    return ranges;
}

// After a failure nothing stays open.
int closed_if_failed(int result) {
    if (result >= 0) return result;
    const std::string why = failure;
    release();
    failure = why;
    return result;
}

}  // namespace

// What went wrong in the last call that returned -1.
extern "C" const char* rs_counters_error() { return failure.c_str(); }

// Counts in the current context: each kernel by itself from here on (they no longer run side by side), or all from
// `rs_counters_push` on as one range. -1 also with metrics that need more than one pass.
extern "C" int rs_counters_begin(int device, void* context, const char* const* names, int count, int per_kernel,
                                 int max_ranges) {
    return closed_if_failed(begin(device, context, names, count, per_kernel, max_ranges));
}

extern "C" int rs_counters_push() { return closed_if_failed(push()); }

// Ends the counting. `values` has room for `max_ranges` rows of one number for each metric; returns how many ranges
// there were. Everything must have run to its end.
extern "C" int rs_counters_end(double* values, int max_ranges) {
    const int ranges = closed_if_failed(end(values, max_ranges));
    return ranges < 0 || release() < 0 ? -1 : ranges;
}
