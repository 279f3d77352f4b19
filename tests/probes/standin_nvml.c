/* A stand-in for libnvidia-ml.so.1. STANDIN_NVML names a file that says what the machine is like now; it is read anew
 * at every call, so that a test can change the machine while somebody looks at it. Its lines:
 *
 *   gpus 8                     how many GPUs there are (at most 8)
 *   model 1 Tesla T4           the name of a GPU; "Stand-in" otherwise
 *   sliced 3 2                 MIG is on for GPU 3, which has instances 0 and 1, in places 1 and 2 of the list
 *   used 0 1000                MiB in use on a GPU ("0") or a slice ("3.1"); (100 * (GPU + 1)) MiB and, for slices,
 *                              (10 * (slice + 1)) MiB otherwise
 *   process 0 4242 500 c       a process on a GPU or slice: id, MiB (-1 for "not told"), c(ompute), g(raphics) or m(ps)
 *   fail nvmlDeviceGetCount 15 an answer of a function: of all devices, or only of one: "fail nvmlDeviceGetUUID 15 2"
 *   fail * 1                   … of every function
 *
 * GPU i is called GPU-i000… and has 1000 * (i + 1) MiB, slice j of it MIG-ij00… with 100 MiB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; } process_t;

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
enum { GPUS = 8, SLICES = 7, STRIDE = SLICES + 1 };
static char devices[GPUS * STRIDE];

static int number(void *device) { return (int)((char *)device - devices); }
static int gpu_of(void *device) { return number(device) / STRIDE; }
static int slice_of(void *device) { return number(device) % STRIDE - 1; } /* -1 for a whole GPU */

static FILE *world(void) {
    const char *path = getenv("STANDIN_NVML");
    return path ? fopen(path, "r") : NULL;
}

/* The value of the first line "WORD KEY VALUE", or of "WORD VALUE" where key is NULL. */
static long look(const char *word, const char *key, long otherwise) {
    char line[256], found_key[64];
    long value, result = otherwise;
    FILE *file = world();
    size_t length = strlen(word);
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, word, length) || line[length] != ' ') continue;
        if (key ? sscanf(line + length, "%63s %ld", found_key, &value) == 2 && !strcmp(found_key, key)
                : sscanf(line + length, "%ld", &value) == 1) { result = value; break; }
    }
    if (file) fclose(file);
    return result;
}
static void spell(void *device, char *text) {
    if (slice_of(device) < 0) sprintf(text, "%d", gpu_of(device));
    else sprintf(text, "%d.%d", gpu_of(device), slice_of(device));
}
static int gpus(void) { return (int)look("gpus", NULL, 4); }
static int slices(int gpu) {
    char key[8];
    sprintf(key, "%d", gpu);
    return (int)look("sliced", key, -1);
}

/* What a function is to answer: 0, or the code of a "fail" line. */
static int verdict(const char *function, void *device) {
    char line[256], name[64], where[16], here[16] = "";
    int code, result = SUCCESS;
    FILE *file = world();
    if (device) spell(device, here);
    while (file && fgets(line, sizeof line, file)) {
        int words = sscanf(line, "fail %63s %d %15s", name, &code, where);
        if (words < 2 || (strcmp(name, "*") && strcmp(name, function))) continue;
        if (words == 2 || !strcmp(where, here)) { result = code; break; }
    }
    if (file) fclose(file);
    return result;
}
#define ANSWER(device) do { int code = verdict(__func__, device); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned int flags) { (void)flags; ANSWER(NULL); return SUCCESS; }
int nvmlShutdown(void) { ANSWER(NULL); return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { ANSWER(NULL); *count = gpus(); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (index >= (unsigned)gpus()) return INVALID;
    ANSWER(devices + index * STRIDE);
    *device = devices + index * STRIDE;
    return SUCCESS;
}
static void name_it(void *device, char *uuid) {
    if (slice_of(device) < 0) sprintf(uuid, "GPU-%d0000000-1111-2222-3333-444444444444", gpu_of(device));
    else sprintf(uuid, "MIG-%d%d000000-1111-2222-3333-444444444444", gpu_of(device), slice_of(device));
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char name[64];
    ANSWER(NULL);
    for (int i = 0; i < gpus(); i++)
        for (int j = 0; j <= slices(i) || j == 0; j++) {
            name_it(devices + i * STRIDE + j, name);
            if (!strcmp(uuid, name)) { *device = devices + i * STRIDE + j; return SUCCESS; }
        }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int size) {
    char name[64];
    ANSWER(device);
    name_it(device, name);
    snprintf(uuid, size, "%s", name);
    return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *name, unsigned int size) {
    char line[256], text[64];
    int gpu;
    ANSWER(device);
    snprintf(name, size, "Stand-in");
    FILE *file = world();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model %d %63[^\n]", &gpu, text) == 2 && gpu == gpu_of(device)) snprintf(name, size, "%s", text);
    if (file) fclose(file);
    return SUCCESS;
}
int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending) {
    ANSWER(device);
    if (slice_of(device) >= 0) return INVALID;
    if (gpu_of(device) == 0 && slices(0) < 0) return NOT_SUPPORTED;
    *current = *pending = slices(gpu_of(device)) >= 0;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *count) { ANSWER(device); *count = SLICES; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **mig) {
    ANSWER(device);
    /* The list has a hole at its beginning, as after an instance was removed. */
    if (index < 1 || (int)index > slices(gpu_of(device))) return NOT_FOUND;
    *mig = (char *)device + index;
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(void *device, unsigned int *id) { ANSWER(device); *id = 7 + slice_of(device); return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(void *device, unsigned int *id) { ANSWER(device); *id = 0; return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    char key[16];
    ANSWER(device);
    spell(device, key);
    int whole = slice_of(device) < 0;
    memory->total = (whole ? 1000ULL * (gpu_of(device) + 1) : 100ULL) << 20;
    memory->used = (unsigned long long)look("used", key, whole ? 100 * (gpu_of(device) + 1) : 10 * (slice_of(device) + 1)) << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *device, rates_t *rates) {
    ANSWER(device);
    if (slice_of(device) >= 0) return NOT_SUPPORTED;
    rates->gpu = 10 * (gpu_of(device) + 1);
    rates->memory = 0;
    return SUCCESS;
}
static int list(void *device, unsigned int *count, process_t *processes, char kind) {
    char line[256], where[16], here[16], found_kind;
    unsigned int pid, found = 0;
    long mib;
    FILE *file = world();
    spell(device, here);
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "process %15s %u %ld %c", where, &pid, &mib, &found_kind) != 4) continue;
        if (strcmp(where, here) || found_kind != kind) continue;
        if (processes && found < *count) {
            process_t one = {pid, mib < 0 ? ~0ULL : (unsigned long long)mib << 20, ~0U, ~0U};
            processes[found] = one;
        }
        found++;
    }
    if (file) fclose(file);
    int enough = !found || (processes && found <= *count);
    *count = found;
    return enough ? SUCCESS : TOO_SMALL;
}
#define LIST(name, kind) int name(void *device, unsigned int *count, process_t *processes) { \
    ANSWER(device); return list(device, count, processes, kind); }
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'c')
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'c')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'g')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'g')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'm')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm')
int nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    ANSWER(NULL);
    snprintf(name, length, "/opt/somewhere/job-%u", pid);
    return SUCCESS;
}
