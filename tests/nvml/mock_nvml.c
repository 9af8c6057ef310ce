/* A stand-in for libnvidia-ml.so.1, for tests on machines without a GPU.
 *
 * All state lives in one file that every process which loads the library maps. A test changes a field and the
 * next NVML call of the process under test sees it; what that process sets (a power limit) the test sees too.
 *
 *   gcc -shared -fPIC -O1 -Wall -Wextra -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 mock_nvml.c
 *   MOCK_NVML_STATE=/path/of/state LD_LIBRARY_PATH=/directory/of/library python -c 'import pynvml; pynvml.nvmlInit()'
 *
 * -DDRV=470 leaves out the symbols that a driver of that age lacks. Without a state file nvmlInit answers
 * DRIVER_NOT_LOADED. The lists of fields below are the single source: the structs and the text returned by
 * mock_nvml_layout() come from them, so mock.py reads offsets from the library and cannot drift from this file.
 *
 * Never shorten a state file that a process has mapped: its next NVML call would die of SIGBUS.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef DRV
#define DRV 580
#endif

/* Return codes of NVML that this file gives by itself; a fault rule can give any other. */
enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
};

enum { MAX_GPUS = 16, MAX_SLICES = 8, MAX_PROCESSES = 256, MAX_FAULTS = 32, MAX_EVENTS = 64 };

typedef uint32_t u32;
typedef uint64_t u64;
typedef void *Handle;

/* ---- State ----------------------------------------------------------------------------------------------- */

/* S(name, length) is text, U(name) a 32-bit number, L(name) a 64-bit number. */

/* lost: 1 every call on the GPU fails, 2 it gives no handle either. forbidden: no permission for the handle.
 * unified: no memory of its own. numa, fan: 0xFFFFFFFF means not supported. switch_links: NVLinks to NVSwitch. */
#define GPU_FIELDS(S, U, L) \
    S(name, 96) S(uuid, 96) S(serial, 32) S(vbios, 32) \
    L(mem_total) L(mem_reserved) L(mem_used) \
    L(energy_base_mj) L(energy_t0_ns) L(reasons) \
    L(ecc_corrected) L(ecc_uncorrected) L(cpu_mask) L(violation_ns) \
    U(domain) U(bus) U(slot) U(pci_id) U(minor) U(numa) \
    U(cc_major) U(cc_minor) U(arch) U(brand) U(cores) U(bus_width) \
    U(lost) U(forbidden) U(unified) \
    U(util) U(mem_util) U(temp) U(fan) U(pstate) \
    U(demand_mw) U(limit_mw) U(min_mw) U(max_mw) U(default_mw) \
    U(sm_mhz) U(mem_mhz) U(sm_max_mhz) U(mem_max_mhz) \
    U(persistence) U(compute_mode) U(accounting) \
    U(has_ecc) U(remap_pending) U(remap_failed) U(retired_pending) U(recovery) \
    U(has_mig) U(mig_mode) U(mig_pending) \
    U(no_limit_set) U(no_energy) U(no_proc_util) \
    U(nvlinks) U(switch_links) U(pcie_gen) U(pcie_width)

#define SLICE_FIELDS(S, U, L) \
    S(uuid, 96) L(mem_total) L(mem_used) U(used) U(gi) U(ci) U(slices) U(sms)

/* kind: 0 compute, 1 graphics, 2 MPS. ended: kept for accounting only. */
#define PROCESS_FIELDS(S, U, L) \
    L(mem) L(max_mem) L(start_us) L(run_ms) \
    U(used) U(ended) U(gpu) U(pid) U(kind) U(sm) U(mem_util) U(gi) U(ci)

/* An empty fn means every function. gpu1: 0 all GPUs, else index + 1. times: 0 for ever. code 0: only the delay. */
#define FAULT_FIELDS(S, U, L) S(fn, 64) U(used) U(gpu1) U(code) U(delay_ms) U(times)

#define EVENT_FIELDS(S, U, L) L(type) L(data) U(gpu) U(gi)

/* root: 0 as the real user, 1 yes, 2 no. reap: drop processes that have ended, as the driver does. */
#define TOP_FIELDS(S, U, L) \
    L(calls) L(event_seq) S(driver, 80) S(nvml, 80) U(count) U(init_err) U(cuda) U(root) U(reap) U(opened)

#define DECLARE_TEXT(name, length) char name[length];
#define DECLARE_U32(name) u32 name;
#define DECLARE_U64(name) u64 name;
#define DECLARE(Type, FIELDS) typedef struct { FIELDS(DECLARE_TEXT, DECLARE_U32, DECLARE_U64) } Type;

DECLARE(Gpu, GPU_FIELDS)
DECLARE(Slice, SLICE_FIELDS)
DECLARE(Process, PROCESS_FIELDS)
DECLARE(Fault, FAULT_FIELDS)
DECLARE(Event, EVENT_FIELDS)
DECLARE(Top, TOP_FIELDS)

typedef struct {
    Top top;
    Gpu gpu[MAX_GPUS];
    Slice slice[MAX_GPUS][MAX_SLICES];
    Process process[MAX_PROCESSES];
    Fault fault[MAX_FAULTS];
    Event event[MAX_EVENTS];
    u32 topology[MAX_GPUS][MAX_GPUS]; /* NVML's common ancestor: 10 one switch ... 50 across the system */
    u32 links[MAX_GPUS][MAX_GPUS];    /* NVLinks from one GPU straight to another */
} State;

static State *state;
static int open_count;
static __thread int current; /* index of the GPU that the present call is about */

/* Lines "table:offset:stride:count", each followed by its " field:kind:offset:size". */
#define LINE(...) end += sprintf(end, __VA_ARGS__)
#define TABLE(name, offset, size, count) LINE("%s:%zu:%zu:%d\n", name, (size_t)(offset), (size_t)(size), (int)(count))
#define FIELD(Type, name, kind) \
    LINE(" %s:%c:%zu:%zu\n", #name, kind, offsetof(Type, name), sizeof(((Type *)0)->name));
#define GPU_TEXT(name, length) FIELD(Gpu, name, 's')
#define GPU_NUMBER(name) FIELD(Gpu, name, 'u')
#define SLICE_TEXT(name, length) FIELD(Slice, name, 's')
#define SLICE_NUMBER(name) FIELD(Slice, name, 'u')
#define PROCESS_TEXT(name, length) FIELD(Process, name, 's')
#define PROCESS_NUMBER(name) FIELD(Process, name, 'u')
#define FAULT_TEXT(name, length) FIELD(Fault, name, 's')
#define FAULT_NUMBER(name) FIELD(Fault, name, 'u')
#define EVENT_TEXT(name, length) FIELD(Event, name, 's')
#define EVENT_NUMBER(name) FIELD(Event, name, 'u')
#define TOP_TEXT(name, length) FIELD(Top, name, 's')
#define TOP_NUMBER(name) FIELD(Top, name, 'u')

const char *mock_nvml_layout(void)
{
    static char text[16384];
    char *end = text;

    TABLE("top", offsetof(State, top), sizeof(Top), 1);
    TOP_FIELDS(TOP_TEXT, TOP_NUMBER, TOP_NUMBER)
    TABLE("gpu", offsetof(State, gpu), sizeof(Gpu), MAX_GPUS);
    GPU_FIELDS(GPU_TEXT, GPU_NUMBER, GPU_NUMBER)
    TABLE("slice", offsetof(State, slice), sizeof(Slice), MAX_GPUS * MAX_SLICES);
    SLICE_FIELDS(SLICE_TEXT, SLICE_NUMBER, SLICE_NUMBER)
    TABLE("process", offsetof(State, process), sizeof(Process), MAX_PROCESSES);
    PROCESS_FIELDS(PROCESS_TEXT, PROCESS_NUMBER, PROCESS_NUMBER)
    TABLE("fault", offsetof(State, fault), sizeof(Fault), MAX_FAULTS);
    FAULT_FIELDS(FAULT_TEXT, FAULT_NUMBER, FAULT_NUMBER)
    TABLE("event", offsetof(State, event), sizeof(Event), MAX_EVENTS);
    EVENT_FIELDS(EVENT_TEXT, EVENT_NUMBER, EVENT_NUMBER)
    TABLE("topology", offsetof(State, topology), sizeof(u32), MAX_GPUS * MAX_GPUS);
    TABLE("links", offsetof(State, links), sizeof(u32), MAX_GPUS * MAX_GPUS);
    TABLE("size", sizeof(State), 1, 1);
    return text;
}

/* ---- What every call does -------------------------------------------------------------------------------- */

static u64 nanoseconds(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
}

static int map_state(void)
{
    const char *path = getenv("MOCK_NVML_STATE");
    struct stat status;
    void *mapped;
    int fd;

    if (state)
        return OK;
    fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return DRIVER_NOT_LOADED;
    if (fstat(fd, &status) || (size_t)status.st_size < sizeof(State)) {
        close(fd);
        return DRIVER_NOT_LOADED;
    }
    mapped = mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED)
        return DRIVER_NOT_LOADED;
    state = mapped;
    return OK;
}

/* The code that a fault rule wants this call to return, after the delay that it wants. */
static int planned_fault(const char *function, int gpu)
{
    for (Fault *fault = state->fault; fault < state->fault + MAX_FAULTS; fault++) {
        if (!fault->used || (fault->gpu1 && (int)fault->gpu1 != gpu + 1))
            continue;
        if (*fault->fn && strcmp(fault->fn, function))
            continue;
        if (fault->delay_ms) {
            struct timespec delay = {fault->delay_ms / 1000, (fault->delay_ms % 1000) * 1000000l};
            nanosleep(&delay, NULL);
        }
        if (fault->times && --fault->times == 0)
            fault->used = 0;
        if (fault->code)
            return (int)fault->code;
    }
    return OK;
}

/* Handles are numbers, 0x10000 + 0x100 * GPU (+ 1 + slot for a MIG slice): opaque and never followed. */
static Handle handle_of(int gpu, int slot)
{
    return (Handle)(uintptr_t)(0x10000 + gpu * 0x100 + (slot < 0 ? 0 : 1 + slot));
}

static int gpu_of(Handle handle)
{
    return (int)(((uintptr_t)handle - 0x10000) / 0x100);
}

static int enter_gpu(const char *function, Handle handle, Gpu **gpu, Slice **slice)
{
    uintptr_t number = (uintptr_t)handle;
    int slot = (int)(number & 0xff) - 1;
    int code;

    if (!open_count || !state)
        return UNINITIALIZED;
    __atomic_add_fetch(&state->top.calls, 1, __ATOMIC_RELAXED);
    current = gpu_of(handle);
    if (number < 0x10000 || current >= (int)state->top.count || slot >= MAX_SLICES)
        return INVALID_ARGUMENT;
    *gpu = &state->gpu[current];
    *slice = slot >= 0 ? &state->slice[current][slot] : NULL;
    if (*slice && !(*slice)->used)
        return INVALID_ARGUMENT;
    code = planned_fault(function, current);
    if (code)
        return code;
    return (*gpu)->lost ? GPU_IS_LOST : OK;
}

static int enter_system(const char *function)
{
    if (!open_count || !state)
        return UNINITIALIZED;
    __atomic_add_fetch(&state->top.calls, 1, __ATOMIC_RELAXED);
    return planned_fault(function, -1);
}

/* First line of a call about a GPU: declares `gpu` and `slice` (NULL for a whole GPU). */
#define ENTER_GPU(handle) \
    Gpu *gpu = NULL; \
    Slice *slice = NULL; \
    int entered = enter_gpu(__func__, handle, &gpu, &slice); \
    if (entered) \
        return entered; \
    (void)gpu; \
    (void)slice

#define ENTER_SYSTEM() \
    do { \
        int entered = enter_system(__func__); \
        if (entered) \
            return entered; \
    } while (0)

#define NEED(condition) \
    do { \
        if (!(condition)) \
            return NOT_SUPPORTED; \
    } while (0)

#define NEED_ROOT() \
    do { \
        if (!is_root()) \
            return NO_PERMISSION; \
    } while (0)

static int is_root(void)
{
    return state->top.root == 1 || (state->top.root == 0 && geteuid() == 0);
}

static int copy_text(char *target, u32 size, const char *text)
{
    if (!target)
        return INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(target, text);
    return OK;
}

/* A call that only returns one 32-bit number. */
#define NUMBER_CALL(function, value, condition) \
    int function(Handle handle, u32 *out) \
    { \
        ENTER_GPU(handle); \
        NEED(condition); \
        if (!out) \
            return INVALID_ARGUMENT; \
        *out = (value); \
        return OK; \
    }

/* A call that sets one 32-bit number, which only root may. */
#define ROOT_CALL(function, field) \
    int function(Handle handle, u32 value) \
    { \
        ENTER_GPU(handle); \
        NEED_ROOT(); \
        gpu->field = value; \
        return OK; \
    }

#define UNSUPPORTED_CALL(function) \
    int function(Handle handle, void *out) \
    { \
        (void)out; \
        ENTER_GPU(handle); \
        return NOT_SUPPORTED; \
    }

/* ---- Start and system ------------------------------------------------------------------------------------ */

int nvmlInitWithFlags(u32 flags)
{
    int code = map_state();

    (void)flags;
    if (code)
        return code;
    if (state->top.init_err)
        return (int)state->top.init_err;
    code = planned_fault(__func__, -1);
    if (code)
        return code;
    __atomic_add_fetch(&open_count, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&state->top.opened, 1, __ATOMIC_SEQ_CST);
    return OK;
}

int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
    if (!open_count)
        return UNINITIALIZED;
    __atomic_sub_fetch(&open_count, 1, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&state->top.opened, 1, __ATOMIC_SEQ_CST);
    return OK;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case OK: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Mock error";
    }
}

int nvmlSystemGetDriverVersion(char *text, u32 size)
{
    ENTER_SYSTEM();
    return copy_text(text, size, state->top.driver);
}

int nvmlSystemGetNVMLVersion(char *text, u32 size)
{
    ENTER_SYSTEM();
    return copy_text(text, size, state->top.nvml);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER_SYSTEM();
    *version = (int)state->top.cuda;
    return OK;
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

int nvmlSystemGetProcessName(u32 pid, char *text, u32 size)
{
    char path[64];
    FILE *file;

    ENTER_SYSTEM();
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    file = fopen(path, "r");
    if (!file)
        return NOT_FOUND;
    if (!fgets(text, (int)size, file))
        *text = 0;
    fclose(file);
    text[strcspn(text, "\n")] = 0;
    return OK;
}

/* ---- Which GPUs there are -------------------------------------------------------------------------------- */

typedef struct {
    char short_bus_id[16];
    u32 domain, bus, device, pci_id, subsystem_id;
    char bus_id[32];
} PciInfo;

static void describe_pci(u32 domain, u32 bus, u32 slot, u32 pci_id, PciInfo *info)
{
    memset(info, 0, sizeof *info);
    info->domain = domain;
    info->bus = bus;
    info->device = slot;
    info->pci_id = pci_id;
    info->subsystem_id = pci_id;
    snprintf(info->short_bus_id, 16, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, slot & 0xff);
    snprintf(info->bus_id, 32, "%08X:%02X:%02X.0", domain, bus & 0xff, slot & 0xff);
}

static void describe_gpu_pci(const Gpu *gpu, PciInfo *info)
{
    describe_pci(gpu->domain, gpu->bus, gpu->slot, gpu->pci_id, info);
}

int nvmlDeviceGetCount_v2(u32 *count)
{
    ENTER_SYSTEM();
    *count = state->top.count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, Handle *out)
{
    int code;

    ENTER_SYSTEM();
    if (index >= state->top.count)
        return INVALID_ARGUMENT;
    code = planned_fault(__func__, (int)index);
    if (code)
        return code;
    if (state->gpu[index].forbidden)
        return NO_PERMISSION;
    if (state->gpu[index].lost == 2)
        return GPU_IS_LOST;
    *out = handle_of((int)index, -1);
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *out)
{
    ENTER_SYSTEM();
    for (int i = 0; i < (int)state->top.count; i++) {
        if (!strcmp(uuid, state->gpu[i].uuid)) {
            *out = handle_of(i, -1);
            return state->gpu[i].lost == 2 ? GPU_IS_LOST : OK;
        }
        for (int slot = 0; slot < MAX_SLICES; slot++) {
            const Slice *slice = &state->slice[i][slot];
            if (slice->used && !strcmp(uuid, slice->uuid)) {
                *out = handle_of(i, slot);
                return OK;
            }
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Handle *out)
{
    ENTER_SYSTEM();
    for (int i = 0; i < (int)state->top.count; i++) {
        PciInfo info;
        describe_gpu_pci(&state->gpu[i], &info);
        if (!strcasecmp(bus_id, info.bus_id) || !strcasecmp(bus_id, info.short_bus_id)) {
            *out = handle_of(i, -1);
            return OK;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo *info)
{
    ENTER_GPU(handle);
    describe_gpu_pci(gpu, info);
    return OK;
}

int nvmlDeviceGetName(Handle handle, char *text, u32 size)
{
    char name[160];

    ENTER_GPU(handle);
    if (!slice)
        return copy_text(text, size, gpu->name);
    snprintf(name, sizeof name, "%s MIG %ug.%ugb", gpu->name, slice->slices, (u32)(slice->mem_total >> 30));
    return copy_text(text, size, name);
}

int nvmlDeviceGetUUID(Handle handle, char *text, u32 size)
{
    ENTER_GPU(handle);
    return copy_text(text, size, slice ? slice->uuid : gpu->uuid);
}

int nvmlDeviceGetSerial(Handle handle, char *text, u32 size)
{
    ENTER_GPU(handle);
    NEED(*gpu->serial);
    return copy_text(text, size, gpu->serial);
}

int nvmlDeviceGetVbiosVersion(Handle handle, char *text, u32 size)
{
    ENTER_GPU(handle);
    return copy_text(text, size, gpu->vbios);
}

int nvmlDeviceGetCudaComputeCapability(Handle handle, int *major, int *minor)
{
    ENTER_GPU(handle);
    *major = (int)gpu->cc_major;
    *minor = (int)gpu->cc_minor;
    return OK;
}

NUMBER_CALL(nvmlDeviceGetIndex, slice ? (u32)(slice - state->slice[current]) : (u32)current, 1)
NUMBER_CALL(nvmlDeviceGetMinorNumber, gpu->minor, 1)
NUMBER_CALL(nvmlDeviceGetBrand, gpu->brand, 1)
NUMBER_CALL(nvmlDeviceGetArchitecture, gpu->arch, 1)
NUMBER_CALL(nvmlDeviceGetNumGpuCores, gpu->cores, !slice)
NUMBER_CALL(nvmlDeviceGetMemoryBusWidth, gpu->bus_width, !slice)
NUMBER_CALL(nvmlDeviceGetNumaNodeId, gpu->numa, gpu->numa != ~0u)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkGeneration, gpu->pcie_gen, 1)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkWidth, gpu->pcie_width, 1)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkGeneration, gpu->pcie_gen, 1)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkWidth, gpu->pcie_width, 1)
NUMBER_CALL(nvmlDeviceGetDisplayMode, 0, 1)
NUMBER_CALL(nvmlDeviceGetDisplayActive, 0, 1)
NUMBER_CALL(nvmlDeviceGetPersistenceMode, gpu->persistence, 1)
NUMBER_CALL(nvmlDeviceGetComputeMode, gpu->compute_mode, 1)
ROOT_CALL(nvmlDeviceSetPersistenceMode, persistence)
ROOT_CALL(nvmlDeviceSetComputeMode, compute_mode)

/* Windows only; some clients print a traceback when the symbols are missing. */
int nvmlDeviceGetDriverModel(Handle handle, u32 *now, u32 *pending)
{
    (void)now;
    (void)pending;
    ENTER_GPU(handle);
    return NOT_SUPPORTED;
}

int nvmlDeviceGetDriverModel_v2(Handle handle, u32 *now, u32 *pending)
{
    return nvmlDeviceGetDriverModel(handle, now, pending);
}

/* ---- MIG ------------------------------------------------------------------------------------------------- */

NUMBER_CALL(nvmlDeviceGetMaxMigDeviceCount, gpu->has_mig ? MAX_SLICES - 1 : 0, 1)
NUMBER_CALL(nvmlDeviceIsMigDeviceHandle, slice ? 1u : 0u, 1)
NUMBER_CALL(nvmlDeviceGetGpuInstanceId, slice->gi, slice)
NUMBER_CALL(nvmlDeviceGetComputeInstanceId, slice->ci, slice)

int nvmlDeviceGetMigMode(Handle handle, u32 *now, u32 *pending)
{
    ENTER_GPU(handle);
    NEED(gpu->has_mig && !slice);
    *now = gpu->mig_mode;
    *pending = gpu->mig_pending;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, u32 slot, Handle *out)
{
    ENTER_GPU(handle);
    NEED(gpu->has_mig && !slice);
    if (!gpu->mig_mode || slot >= MAX_SLICES || !state->slice[current][slot].used)
        return NOT_FOUND;
    *out = handle_of(current, (int)slot);
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle handle, Handle *out)
{
    ENTER_GPU(handle);
    NEED(slice);
    *out = handle_of(current, -1);
    return OK;
}

typedef struct {
    u32 multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    u64 memory_mib;
} Attributes;

int nvmlDeviceGetAttributes_v2(Handle handle, Attributes *out)
{
    ENTER_GPU(handle);
    NEED(slice);
    memset(out, 0, sizeof *out);
    out->multiprocessors = slice->sms;
    out->gpu_slices = slice->slices;
    out->compute_slices = slice->slices;
    out->memory_mib = slice->mem_total >> 20;
    return OK;
}

/* ---- Topology -------------------------------------------------------------------------------------------- */

/* The GPU at the far end of a link, MAX_GPUS for a switch, -1 when nothing is there. Links to GPUs come first. */
static int far_end(const Gpu *gpu, u32 link)
{
    u32 end = 0;

    for (int i = 0; i < (int)state->top.count; i++) {
        end += state->links[current][i];
        if (link < end)
            return i;
    }
    return link < end + gpu->switch_links ? MAX_GPUS : -1;
}

int nvmlDeviceGetNvLinkState(Handle handle, u32 link, u32 *out)
{
    ENTER_GPU(handle);
    NEED(gpu->nvlinks && !slice);
    if (link >= gpu->nvlinks)
        return INVALID_ARGUMENT;
    *out = far_end(gpu, link) >= 0;
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle handle, u32 link, PciInfo *info)
{
    int end;

    ENTER_GPU(handle);
    NEED(gpu->nvlinks && !slice);
    end = far_end(gpu, link);
    if (end < 0)
        return INVALID_ARGUMENT;
    if (end == MAX_GPUS)
        describe_pci(0, 0xf0 + link % 4, 0, 0x22a310de, info);
    else
        describe_gpu_pci(&state->gpu[end], info);
    return OK;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Handle handle, u32 link, u32 *out)
{
    int end;

    ENTER_GPU(handle);
    NEED(gpu->nvlinks && !slice);
    end = far_end(gpu, link);
    if (end < 0)
        return INVALID_ARGUMENT;
    *out = end == MAX_GPUS ? 2 : 0;
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(Handle handle, Handle other, u32 *out)
{
    ENTER_GPU(handle);
    if (gpu_of(other) >= (int)state->top.count)
        return INVALID_ARGUMENT;
    *out = state->topology[current][gpu_of(other)];
    return OK;
}

int nvmlDeviceGetP2PStatus(Handle handle, Handle other, u32 index, u32 *out)
{
    int peer = gpu_of(other);
    int has_links;

    ENTER_GPU(handle);
    if (peer >= (int)state->top.count)
        return INVALID_ARGUMENT;
    has_links = state->links[current][peer] || (gpu->switch_links && state->gpu[peer].switch_links);
    if (index == 2) /* over NVLink */
        *out = has_links ? 0 : 5;
    else
        *out = has_links || state->topology[current][peer] <= 30 ? 0 : 3;
    return OK;
}

int nvmlDeviceGetCpuAffinity(Handle handle, u32 words, unsigned long *mask)
{
    ENTER_GPU(handle);
    for (u32 i = 0; i < words; i++)
        mask[i] = i ? 0 : gpu->cpu_mask;
    return OK;
}

/* ---- Power and energy ------------------------------------------------------------------------------------ */

static u32 drawn_mw(const Gpu *gpu)
{
    return gpu->demand_mw > gpu->limit_mw ? gpu->limit_mw : gpu->demand_mw;
}

/* Bring the energy counter up to now; to be called before the power changes. */
static void settle_energy(Gpu *gpu)
{
    u64 now = nanoseconds(CLOCK_MONOTONIC);

    gpu->energy_base_mj += (u64)(drawn_mw(gpu) * ((double)(now - gpu->energy_t0_ns) / 1e9));
    gpu->energy_t0_ns = now;
}

NUMBER_CALL(nvmlDeviceGetPowerUsage, drawn_mw(gpu), !slice)
NUMBER_CALL(nvmlDeviceGetPowerManagementLimit, gpu->limit_mw, !slice)
NUMBER_CALL(nvmlDeviceGetEnforcedPowerLimit, gpu->limit_mw, !slice)
NUMBER_CALL(nvmlDeviceGetPowerManagementDefaultLimit, gpu->default_mw, !slice)

int nvmlDeviceGetPowerManagementLimitConstraints(Handle handle, u32 *lowest, u32 *highest)
{
    ENTER_GPU(handle);
    NEED(!slice);
    *lowest = gpu->min_mw;
    *highest = gpu->max_mw;
    return OK;
}

int nvmlDeviceSetPowerManagementLimit(Handle handle, u32 limit_mw)
{
    ENTER_GPU(handle);
    NEED(!slice && !gpu->no_limit_set);
    NEED_ROOT();
    if (limit_mw < gpu->min_mw || limit_mw > gpu->max_mw)
        return INVALID_ARGUMENT;
    settle_energy(gpu);
    gpu->limit_mw = limit_mw;
    return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(Handle handle, u64 *millijoules)
{
    ENTER_GPU(handle);
    NEED(!slice && !gpu->no_energy);
    settle_energy(gpu);
    *millijoules = gpu->energy_base_mj;
    return OK;
}

static u64 clock_reasons(const Gpu *gpu)
{
    return gpu->reasons | (gpu->demand_mw > gpu->limit_mw ? 4 : 0) | (gpu->util ? 0 : 1);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Handle handle, u64 *reasons)
{
    ENTER_GPU(handle);
    NEED(!slice);
    *reasons = clock_reasons(gpu);
    return OK;
}

int nvmlDeviceGetViolationStatus(Handle handle, u32 policy, u64 *out)
{
    ENTER_GPU(handle);
    NEED(!slice && policy <= 1); /* power, thermal */
    out[0] = nanoseconds(CLOCK_REALTIME) / 1000;
    out[1] = policy ? 0 : gpu->violation_ns;
    return OK;
}

/* ---- Load, memory, clocks -------------------------------------------------------------------------------- */

NUMBER_CALL(nvmlDeviceGetPerformanceState, gpu->pstate, !slice)
NUMBER_CALL(nvmlDeviceGetFanSpeed, gpu->fan, gpu->fan != ~0u && !slice)

int nvmlDeviceGetUtilizationRates(Handle handle, u32 *out)
{
    ENTER_GPU(handle);
    NEED(!slice && !gpu->mig_mode);
    out[0] = gpu->util;
    out[1] = gpu->mem_util;
    return OK;
}

int nvmlDeviceGetEncoderUtilization(Handle handle, u32 *utilization, u32 *period_us)
{
    ENTER_GPU(handle);
    NEED(!slice);
    *utilization = 0;
    *period_us = 167000;
    return OK;
}

int nvmlDeviceGetDecoderUtilization(Handle handle, u32 *utilization, u32 *period_us)
{
    return nvmlDeviceGetEncoderUtilization(handle, utilization, period_us);
}

int nvmlDeviceGetPcieThroughput(Handle handle, u32 counter, u32 *out)
{
    (void)counter;
    ENTER_GPU(handle);
    NEED(!slice);
    *out = 0;
    return OK;
}

/* One sample of power (type 0), GPU (1) or memory (2) load, taken now. */
int nvmlDeviceGetSamples(Handle handle, u32 type, u64 since_us, u32 *value_type, u32 *count, u64 *out)
{
    u64 now_us = nanoseconds(CLOCK_REALTIME) / 1000;

    ENTER_GPU(handle);
    NEED(!slice && type <= 2);
    *value_type = 1;
    if (now_us <= since_us)
        return NOT_FOUND;
    if (out && *count) {
        out[0] = now_us;
        out[1] = type == 0 ? drawn_mw(gpu) : type == 1 ? gpu->util : gpu->mem_util;
    }
    *count = 1;
    return OK;
}

int nvmlDeviceGetTemperature(Handle handle, u32 sensor, u32 *out)
{
    ENTER_GPU(handle);
    NEED(sensor == 0);
    *out = gpu->temp;
    return OK;
}

int nvmlDeviceGetClockInfo(Handle handle, u32 type, u32 *out)
{
    ENTER_GPU(handle);
    NEED(!slice);
    *out = type == 2 ? gpu->mem_mhz : gpu->sm_mhz;
    return OK;
}

int nvmlDeviceGetMaxClockInfo(Handle handle, u32 type, u32 *out)
{
    ENTER_GPU(handle);
    NEED(!slice);
    *out = type == 2 ? gpu->mem_max_mhz : gpu->sm_max_mhz;
    return OK;
}

/* The first form of the call counts the driver's reserve as used. */
int nvmlDeviceGetMemoryInfo(Handle handle, u64 *out)
{
    u64 total, used;

    ENTER_GPU(handle);
    NEED(!gpu->unified);
    total = slice ? slice->mem_total : gpu->mem_total;
    used = slice ? slice->mem_used : gpu->mem_used + gpu->mem_reserved;
    out[0] = total;
    out[1] = total - used;
    out[2] = used;
    return OK;
}

int nvmlDeviceGetBAR1MemoryInfo(Handle handle, u64 *out)
{
    ENTER_GPU(handle);
    out[0] = 256 << 20;
    out[1] = 255 << 20;
    out[2] = 1 << 20;
    return OK;
}

/* ---- Health ---------------------------------------------------------------------------------------------- */

NUMBER_CALL(nvmlDeviceGetRetiredPagesPendingStatus, gpu->retired_pending, gpu->has_ecc && gpu->arch < 7 && !slice)

int nvmlDeviceGetEccMode(Handle handle, u32 *now, u32 *pending)
{
    ENTER_GPU(handle);
    NEED(gpu->has_ecc);
    *now = *pending = 1;
    return OK;
}

int nvmlDeviceGetTotalEccErrors(Handle handle, u32 type, u32 counter, u64 *out)
{
    (void)counter;
    ENTER_GPU(handle);
    NEED(gpu->has_ecc && !slice);
    *out = type ? gpu->ecc_uncorrected : gpu->ecc_corrected;
    return OK;
}

int nvmlDeviceGetRemappedRows(Handle handle, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed)
{
    ENTER_GPU(handle);
    NEED(gpu->has_ecc && gpu->arch >= 7 && !slice);
    *corrected = 0;
    *uncorrected = gpu->remap_pending;
    *pending = gpu->remap_pending;
    *failed = gpu->remap_failed;
    return OK;
}

/* ---- Processes ------------------------------------------------------------------------------------------- */

static int has_ended(Process *process)
{
    if (process->ended)
        return 1;
    if (state->top.reap && kill((pid_t)process->pid, 0) && errno == ESRCH)
        process->ended = 1;
    return (int)process->ended;
}

/* Records are {pid, memory} in the first form of the calls and {pid, memory, instance ids} in the later ones.
 * A first call with no room gets INSUFFICIENT_SIZE and the count. */
static int list_processes(u32 kind, const Slice *slice, u32 *count, char *out, size_t stride)
{
    u32 room = *count, listed = 0;

    for (Process *process = state->process; process < state->process + MAX_PROCESSES; process++) {
        if (!process->used || (int)process->gpu != current || process->kind != kind)
            continue;
        if ((slice && process->gi != slice->gi) || has_ended(process))
            continue;
        if (listed < room && out) {
            char *record = out + listed * stride;
            memset(record, 0, stride);
            memcpy(record, &process->pid, sizeof(u32));
            memcpy(record + 8, &process->mem, sizeof(u64));
            if (stride > 16) {
                memcpy(record + 16, &process->gi, sizeof(u32));
                memcpy(record + 20, &process->ci, sizeof(u32));
            }
        }
        listed++;
    }
    *count = listed;
    return listed > room || (listed && !out) ? INSUFFICIENT_SIZE : OK;
}

#define PROCESS_CALL(function, kind, stride) \
    int function(Handle handle, u32 *count, void *out) \
    { \
        ENTER_GPU(handle); \
        return list_processes(kind, slice, count, out, stride); \
    }

PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses, 0, 16)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses, 1, 16)
PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v2, 0, 24)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v2, 1, 24)
PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v2, 2, 24)

typedef struct {
    u32 pid;
    u64 at_us;
    u32 sm, memory, encoder, decoder;
} ProcessLoad;

int nvmlDeviceGetProcessUtilization(Handle handle, ProcessLoad *out, u32 *count, u64 since_us)
{
    u32 room = *count, listed = 0;

    (void)since_us;
    ENTER_GPU(handle);
    NEED(!slice && !gpu->no_proc_util && !gpu->mig_mode);
    for (Process *process = state->process; process < state->process + MAX_PROCESSES; process++) {
        if (!process->used || process->ended || (int)process->gpu != current || !process->sm)
            continue;
        if (out && listed < room) {
            ProcessLoad load = {.pid = process->pid, .sm = process->sm, .memory = process->mem_util};
            load.at_us = nanoseconds(CLOCK_REALTIME) / 1000;
            out[listed] = load;
        }
        listed++;
    }
    *count = listed;
    if (!listed)
        return NOT_FOUND;
    return !out || listed > room ? INSUFFICIENT_SIZE : OK;
}

NUMBER_CALL(nvmlDeviceGetAccountingMode, gpu->accounting, !gpu->mig_mode)
NUMBER_CALL(nvmlDeviceGetAccountingBufferSize, MAX_PROCESSES, 1)
ROOT_CALL(nvmlDeviceSetAccountingMode, accounting)

int nvmlDeviceGetAccountingPids(Handle handle, u32 *count, u32 *pids)
{
    u32 room = *count, listed = 0;

    ENTER_GPU(handle);
    NEED(gpu->accounting);
    for (Process *process = state->process; process < state->process + MAX_PROCESSES; process++) {
        if (!process->used || (int)process->gpu != current)
            continue;
        if (listed < room)
            pids[listed] = process->pid;
        listed++;
    }
    *count = listed;
    return listed > room ? INSUFFICIENT_SIZE : OK;
}

typedef struct {
    u32 gpu_utilization, memory_utilization;
    u64 max_memory, run_ms, start_us;
    u32 is_running, reserved[5];
} AccountingStats;

int nvmlDeviceGetAccountingStats(Handle handle, u32 pid, AccountingStats *out)
{
    ENTER_GPU(handle);
    NEED(gpu->accounting);
    for (Process *process = state->process; process < state->process + MAX_PROCESSES; process++) {
        if (!process->used || (int)process->gpu != current || process->pid != pid)
            continue;
        memset(out, 0, sizeof *out);
        out->gpu_utilization = process->sm;
        out->memory_utilization = process->mem_util;
        out->max_memory = process->max_mem > process->mem ? process->max_mem : process->mem;
        out->run_ms = process->run_ms;
        out->start_us = process->start_us;
        out->is_running = !has_ended(process);
        return OK;
    }
    return NOT_FOUND;
}

/* ---- Events ---------------------------------------------------------------------------------------------- */

/* A set remembers which kinds it wants of which GPU, and how far it has read the ring. */
typedef struct {
    u64 read, wanted[MAX_GPUS];
} EventSet;

typedef struct {
    Handle handle;
    u64 type, data;
    u32 gi, ci;
} EventData;

int nvmlEventSetCreate(EventSet **out)
{
    ENTER_SYSTEM();
    *out = calloc(1, sizeof(EventSet));
    (*out)->read = state->top.event_seq;
    return OK;
}

int nvmlEventSetFree(EventSet *set)
{
    free(set);
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(Handle handle, u64 *types)
{
    ENTER_GPU(handle);
    *types = gpu->has_ecc ? 0x810f : 0x10c;
    return OK;
}

int nvmlDeviceRegisterEvents(Handle handle, u64 types, EventSet *set)
{
    ENTER_GPU(handle);
    NEED(!slice);
    set->wanted[current] |= types;
    return OK;
}

static int next_event(EventSet *set, EventData *out)
{
    while (set->read < __atomic_load_n(&state->top.event_seq, __ATOMIC_ACQUIRE)) {
        const Event *event = &state->event[set->read++ % MAX_EVENTS];
        if (set->wanted[event->gpu] & event->type) {
            *out = (EventData){handle_of((int)event->gpu, -1), event->type, event->data, event->gi, ~0u};
            return 1;
        }
    }
    return 0;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *out, u32 timeout_ms)
{
    u64 end = nanoseconds(CLOCK_MONOTONIC) + timeout_ms * 1000000ull;

    ENTER_SYSTEM();
    while (!next_event(set, out)) {
        if (nanoseconds(CLOCK_MONOTONIC) >= end)
            return TIMEOUT;
        usleep(5000);
    }
    return OK;
}

/* ---- Symbols of newer drivers ---------------------------------------------------------------------------- */

#if DRV >= 510

PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v3, 0, 24)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, 1, 24)
PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2, 24)

typedef struct {
    u32 version;
    u64 total, reserved, free, used;
} MemoryV2;

int nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2 *out)
{
    ENTER_GPU(handle);
    NEED(!gpu->unified);
    if (out->version != (sizeof *out | 2u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    out->total = slice ? slice->mem_total : gpu->mem_total;
    out->reserved = slice ? 0 : gpu->mem_reserved;
    out->used = slice ? slice->mem_used : gpu->mem_used;
    out->free = out->total - out->reserved - out->used;
    return OK;
}

#endif

#if DRV >= 535

int nvmlDeviceGetCurrentClocksEventReasons(Handle handle, u64 *reasons)
{
    ENTER_GPU(handle);
    NEED(!slice);
    *reasons = clock_reasons(gpu);
    return OK;
}

typedef struct {
    u32 version, sensor;
    int temperature;
} TemperatureV1;

int nvmlDeviceGetTemperatureV(Handle handle, TemperatureV1 *out)
{
    ENTER_GPU(handle);
    NEED(out->sensor == 0);
    out->temperature = (int)gpu->temp;
    return OK;
}

typedef struct {
    u32 id, scope;
    int64_t at_us, latency_us;
    u32 value_type, code; /* value_type: 1 u32, 3 u64 */
    union {
        u64 wide;
        u32 narrow;
    } value;
} FieldValue;

static int narrow_field(const Gpu *gpu, u32 id, u32 *value)
{
    switch (id) {
    case 91: *value = gpu->nvlinks; return OK;
    case 185: /* average power */
    case 186: *value = drawn_mw(gpu); return OK;
    case 187: *value = gpu->min_mw; return OK;
    case 188: *value = gpu->max_mw; return OK;
    case 189: *value = gpu->default_mw; return OK;
    case 190: *value = gpu->limit_mw; return OK;
    case 230: *value = gpu->recovery; return OK;
    default: return NOT_SUPPORTED;
    }
}

int nvmlDeviceGetFieldValues(Handle handle, int count, FieldValue *field)
{
    ENTER_GPU(handle);
    for (; count-- > 0; field++) {
        field->at_us = (int64_t)(nanoseconds(CLOCK_REALTIME) / 1000);
        if (field->id == 83 && !gpu->no_energy) {
            settle_energy(gpu);
            field->value_type = 3;
            field->value.wide = gpu->energy_base_mj;
            field->code = OK;
        } else {
            field->value_type = 1;
            field->code = (u32)narrow_field(gpu, field->id, &field->value.narrow);
        }
    }
    return OK;
}

/* Present only because some clients tell by these names which process record the driver fills in. */
UNSUPPORTED_CALL(nvmlDeviceGetConfComputeMemSizeInfo)
UNSUPPORTED_CALL(nvmlDeviceGetRunningProcessDetailList)

#endif
