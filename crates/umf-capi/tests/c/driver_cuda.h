/* A CUDA driver as a program has it: libcuda.so.1, opened at run time, with a context of its own. */

#include <dlfcn.h>
#include <umf/providers/provider_cuda.h>

#define KIND "cuda"
#define OPS umfCUDAMemoryProviderOps
#define REFUSED_ALLOCATION "cuMemAlloc:*=CUDA_ERROR_LAUNCH_FAILED"
#define REFUSED_FREE "cuMemFree:*=CUDA_ERROR_ILLEGAL_ADDRESS"
#define REFUSED_EXPORT "cuIpcGetMemHandle:*=CUDA_ERROR_NOT_PERMITTED"
#define REFUSED_OPENING "cuIpcOpenMemHandle:*=CUDA_ERROR_MAP_FAILED"

typedef umf_cuda_memory_provider_params_handle_t params_t;

static void *library;
static void *context;

#define CALL(name, types, ...) ((int (*) types)find(name))(__VA_ARGS__)

static void *find(const char *name) {
    void *function = dlsym(library, name);
    CHECK(function == NULL);
    return function;
}

static void driver_start(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        exit(1);
    }
    CHECK(CALL("cuInit", (unsigned), 0));
    CHECK(CALL("cuCtxCreate_v2", (void **, unsigned, int), &context, 0, 0));
    void *before;
    CHECK(CALL("cuCtxPopCurrent_v2", (void **), &before));
}

static void driver_put(void *to, const void *from, size_t size) {
    void *before;
    CHECK(CALL("cuCtxPushCurrent_v2", (void *), context));
    CHECK(CALL("cuMemcpyHtoD_v2", (void *, const void *, size_t), to, from, size));
    CHECK(CALL("cuCtxPopCurrent_v2", (void **), &before));
}

static void driver_get(void *to, const void *from, size_t size) {
    void *before;
    CHECK(CALL("cuCtxPushCurrent_v2", (void *), context));
    CHECK(CALL("cuMemcpyDtoH_v2", (void *, const void *, size_t), to, from, size));
    CHECK(CALL("cuCtxPopCurrent_v2", (void **), &before));
}

static long driver_count(const char *what) {
    int (*query)(const char *, uint64_t *) = (int (*)(const char *, uint64_t *))dlsym(library, "cudaSoftQuery");
    uint64_t value = 0;
    return !query || query(what, &value) ? -1 : (long)value;
}

static int driver_faults(const char *text) {
    int (*set)(const char *) = (int (*)(const char *))dlsym(library, "cudaSoftSetFaults");
    if (!set) {
        return 0;
    }
    CHECK(set(text));
    return 1;
}

static params_t params_of(umf_usm_memory_type_t type) {
    params_t params;
    CHECK(umfCUDAMemoryProviderParamsCreate(&params));
    CHECK(umfCUDAMemoryProviderParamsSetContext(params, context));
    CHECK(umfCUDAMemoryProviderParamsSetDevice(params, 0));
    CHECK(umfCUDAMemoryProviderParamsSetMemoryType(params, type));
    return params;
}

#define PARAMS_DESTROY umfCUDAMemoryProviderParamsDestroy

static void *the_context(void) { return context; }

static int is_the_device(const void *value, size_t size, umf_usm_memory_type_t type) {
    int expected = 0;
    (void)type;
    return size == sizeof expected && memcmp(value, &expected, size) == 0;
}

/* There is a driver, and the program has not loaded it. */
static void absent(void) {
    umf_memory_provider_handle_t p = NULL;
    params_t params = NULL;
    P(umfCUDAMemoryProviderParamsCreate(&params));
    P(params != NULL);
    P(umfMemoryProviderCreate(OPS(), NULL, &p));
    /* It was not loaded for that. */
    P(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != NULL);
}

static void own_answers(void) {
    umf_memory_provider_handle_t p = NULL;
    params_t params = NULL;
    P(umfCUDAMemoryProviderParamsCreate(NULL));
    P(umfCUDAMemoryProviderParamsCreate(&params));
    P(umfCUDAMemoryProviderParamsDestroy(NULL));
    P(umfCUDAMemoryProviderParamsSetContext(NULL, context));
    P(umfCUDAMemoryProviderParamsSetDevice(NULL, 0));
    P(umfCUDAMemoryProviderParamsSetMemoryType(NULL, UMF_MEMORY_TYPE_HOST));
    BETTER(umfCUDAMemoryProviderParamsSetMemoryType(params, 9));
    P(umfCUDAMemoryProviderParamsSetAllocFlags(NULL, 0));
    P(umfCUDAMemoryProviderParamsSetName(NULL, "x"));
    P(umfCUDAMemoryProviderParamsSetName(params, NULL));
    P(umfMemoryProviderCreate(OPS(), NULL, &p));
    P(umfMemoryProviderCreate(OPS(), params, &p)); /* no type */
    P(umfCUDAMemoryProviderParamsSetMemoryType(params, UMF_MEMORY_TYPE_HOST));
    P(umfMemoryProviderCreate(OPS(), params, &p)); /* no context is current */
    P(umfCUDAMemoryProviderParamsSetContext(params, context));
    P(umfMemoryProviderCreate(OPS(), params, &p)); /* and so no device */
    P(umfCUDAMemoryProviderParamsSetDevice(params, 99));
    P(umfMemoryProviderCreate(OPS(), params, &p)); /* no such device */
    P(umfCUDAMemoryProviderParamsSetDevice(params, 0));
    P(umfCUDAMemoryProviderParamsSetName(params, "mine"));
    P(umfCUDAMemoryProviderParamsSetAllocFlags(params, 1)); /* for all contexts */
    P(umfMemoryProviderCreate(OPS(), params, &p));
    void *m = NULL;
    P(umfMemoryProviderAlloc(p, 100, 0, &m));
    P(umfMemoryProviderFree(p, m, 100));
    P(umfMemoryProviderDestroy(p));
    p = NULL;
    P(umfCUDAMemoryProviderParamsSetAllocFlags(params, 0xff00)); /* flags that there are not */
    P(umfMemoryProviderCreate(OPS(), params, &p));
    P(umfMemoryProviderAlloc(p, 100, 0, &m) || umfMemoryProviderFree(p, m, 100));
    P(umfMemoryProviderDestroy(p));
    p = NULL;
    P(umfCUDAMemoryProviderParamsDestroy(params));

    /* What is current when settings are made is what they begin with. */
    void *before = NULL, *now = NULL;
    CHECK(CALL("cuCtxPushCurrent_v2", (void *), context));
    P(umfCUDAMemoryProviderParamsCreate(&params));
    P(umfCUDAMemoryProviderParamsSetMemoryType(params, UMF_MEMORY_TYPE_DEVICE));
    P(umfMemoryProviderCreate(OPS(), params, &p));
    P(umfMemoryProviderAlloc(p, 100, 0, &m));
    CHECK(CALL("cuCtxGetCurrent", (void **), &now));
    P(now == context);
    CHECK(CALL("cuCtxPopCurrent_v2", (void **), &before));
    P(umfMemoryProviderFree(p, m, 100));
    CHECK(CALL("cuCtxGetCurrent", (void **), &now));
    P(now == NULL);
    P(umfMemoryProviderDestroy(p));
    p = NULL;
    P(umfCUDAMemoryProviderParamsDestroy(params));
}
