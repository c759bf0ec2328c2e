/* Memory of a CUDA device, in a context of the program.
 *
 *   cc device.c $(pkg-config --cflags --libs libumf) -ldl -o device && ./device
 *
 * The program loads the driver, libcuda.so.1, and creates a context. The library uses both, and
 * loads and creates none itself. Headers of CUDA are not needed. Without a driver or a device the
 * program prints a line and ends. The software driver of this repository works, too: docs/cuda-soft.md. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <umf.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/providers/provider_cuda.h>
#include <umfrs.h>

/* Ends the process with the library's text if a call failed. */
static void check(umf_result_t result) {
    if (result != UMF_RESULT_SUCCESS) {
        fprintf(stderr, "%s (result %d)\n", umfrsLastErrorText(), (int)result);
        exit(1);
    }
}

static void *driver;

static void *function(const char *name) {
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

/* Calls a function of the driver, and ends the process if it fails. */
#define DRIVER(name, types, ...) driver_check(#name, ((int (*) types)function(#name))(__VA_ARGS__))

static void driver_check(const char *name, int result) {
    if (result != 0) {
        fprintf(stderr, "%s failed with CUDA error %d\n", name, result);
        exit(1);
    }
}

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        printf("no CUDA driver, so there is nothing to show: %s\n", dlerror());
        return 0;
    }
    int result = ((int (*)(unsigned))function("cuInit"))(0), device = 0, count = 0;
    if (result == 0) {
        result = ((int (*)(int *))function("cuDeviceGetCount"))(&count);
    }
    if (result != 0 || count == 0) {
        printf("no CUDA device, so there is nothing to show (error %d)\n", result);
        return 0;
    }
    void *context;
    DRIVER(cuDeviceGet, (int *, int), &device, 0);
    DRIVER(cuCtxCreate_v2, (void **, unsigned, int), &context, 0, device);

    umf_cuda_memory_provider_params_handle_t params;
    umf_memory_provider_handle_t provider;
    umf_memory_pool_handle_t pool;
    /* The settings begin with the current context and its device. */
    check(umfCUDAMemoryProviderParamsCreate(&params));
    check(umfCUDAMemoryProviderParamsSetMemoryType(params, UMF_MEMORY_TYPE_DEVICE));
    check(umfMemoryProviderCreate(umfCUDAMemoryProviderOps(), params, &provider));
    check(umfCUDAMemoryProviderParamsDestroy(params));
    /* A disjoint pool never accesses the memory that it manages. */
    check(umfPoolCreate(umfDisjointPoolOps(), provider, NULL, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool));

    void *block = umfPoolMalloc(pool, 1 << 20);
    if (block == NULL) {
        const char *text;
        int32_t number;
        check(umfMemoryProviderGetLastNativeError(provider, &text, &number));
        fprintf(stderr, "%s\nthe driver: %d, %s\n", umfrsLastErrorText(), (int)number, text);
        return 1;
    }
    /* The CPU must not access it: the driver copies. */
    char text[32] = "";
    DRIVER(cuMemcpyHtoD_v2, (void *, const void *, size_t), block, "hello, device", 14);
    DRIVER(cuMemcpyDtoH_v2, (void *, const void *, size_t), text, block, 14);
    printf("the device has: %s\n", text);

    check(umfPoolFree(pool, block));
    check(umfPoolDestroy(pool));
    /* The context must outlive the provider. */
    DRIVER(cuCtxDestroy_v2, (void *), context);
    return 0;
}
