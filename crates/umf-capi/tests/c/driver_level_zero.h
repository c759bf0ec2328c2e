/* A Level Zero driver as a program has it: linked to the loader, with a context of its own. */

#include <level_zero/ze_api.h>
#include <umf/providers/provider_level_zero.h>

#define KIND "level zero"
#define OPS umfLevelZeroMemoryProviderOps
/* Calls that the software driver is asked to refuse. */
#define REFUSED_ALLOCATION "zeMemAllocDevice:*=ZE_RESULT_ERROR_DEVICE_LOST"
#define REFUSED_FREE "zeMemFree:*=ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE"
#define REFUSED_EXPORT "zeMemGetIpcHandle:*=ZE_RESULT_ERROR_NOT_AVAILABLE"
#define REFUSED_OPENING "zeMemOpenIpcHandle:*=ZE_RESULT_ERROR_INVALID_NULL_HANDLE"

typedef umf_level_zero_memory_provider_params_handle_t params_t;

static ze_driver_handle_t driver;
static ze_device_handle_t devices[2];
static ze_context_handle_t context;
static ze_command_list_handle_t list;

static void driver_start(void) {
    uint32_t count = 1;
    CHECK(zeInit(0));
    CHECK(zeDriverGet(&count, &driver));
    count = 2;
    CHECK(zeDeviceGet(driver, &count, devices));
    ze_context_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC};
    CHECK(zeContextCreate(driver, &desc, &context));
    ze_command_queue_desc_t queue = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
                                     .mode = ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS};
    CHECK(zeCommandListCreateImmediate(context, devices[0], &queue, &list));
}

static void driver_put(void *to, const void *from, size_t size) {
    CHECK(zeCommandListAppendMemoryCopy(list, to, from, size, NULL, 0, NULL));
}

static void driver_get(void *to, const void *from, size_t size) { driver_put(to, from, size); }

/* Returns a counter of the software driver; -1 with another driver. */
static long driver_count(const char *what) {
    ze_result_t (*query)(const char *, uint64_t *) = NULL;
    uint64_t value = 0;
    if (zeDriverGetExtensionFunctionAddress(driver, "zeSoftQuery", (void **)&query) || query(what, &value)) {
        return -1;
    }
    return (long)value;
}

static int driver_faults(const char *text) {
    ze_result_t (*set)(const char *) = NULL;
    if (zeDriverGetExtensionFunctionAddress(driver, "zeSoftSetFaults", (void **)&set)) {
        return 0;
    }
    CHECK(set(text));
    return 1;
}

static params_t params_of(umf_usm_memory_type_t type) {
    params_t params;
    CHECK(umfLevelZeroMemoryProviderParamsCreate(&params));
    CHECK(umfLevelZeroMemoryProviderParamsSetContext(params, context));
    CHECK(umfLevelZeroMemoryProviderParamsSetMemoryType(params, type));
    if (type != UMF_MEMORY_TYPE_HOST) {
        CHECK(umfLevelZeroMemoryProviderParamsSetDevice(params, devices[0]));
    }
    return params;
}

#define PARAMS_DESTROY umfLevelZeroMemoryProviderParamsDestroy

static void *the_context(void) { return context; }

/* The device in the type that its property has. */
static int is_the_device(const void *value, size_t size, umf_usm_memory_type_t type) {
    ze_device_handle_t expected = type == UMF_MEMORY_TYPE_HOST ? NULL : devices[0];
    return size == sizeof expected && memcmp(value, &expected, size) == 0;
}

/* The program has a driver, and the library is told another name for the loader. */
static void absent(void) {
    umf_memory_provider_handle_t p = NULL;
    driver_start();
    params_t params = params_of(UMF_MEMORY_TYPE_DEVICE);
    P(umfMemoryProviderCreate(OPS(), params, &p));
    P(p != NULL);
    P(PARAMS_DESTROY(params));
}

/* What this kind of provider has beside the other. */
static void own_answers(void) {
    umf_memory_provider_handle_t p = NULL;
    params_t params = NULL;
    P(umfLevelZeroMemoryProviderParamsCreate(NULL));
    P(umfLevelZeroMemoryProviderParamsCreate(&params));
    P(umfLevelZeroMemoryProviderParamsDestroy(NULL));
    P(umfLevelZeroMemoryProviderParamsSetContext(NULL, context));
    P(umfLevelZeroMemoryProviderParamsSetContext(params, NULL));
    P(umfLevelZeroMemoryProviderParamsSetDevice(NULL, devices[0]));
    P(umfLevelZeroMemoryProviderParamsSetMemoryType(NULL, UMF_MEMORY_TYPE_HOST));
    BETTER(umfLevelZeroMemoryProviderParamsSetMemoryType(params, 9));
    P(umfLevelZeroMemoryProviderParamsSetFreePolicy(NULL, 0));
    BETTER(umfLevelZeroMemoryProviderParamsSetFreePolicy(params, 9));
    P(umfLevelZeroMemoryProviderParamsSetDeviceOrdinal(NULL, 0));
    P(umfLevelZeroMemoryProviderParamsSetName(NULL, "x"));
    P(umfLevelZeroMemoryProviderParamsSetName(params, NULL));
    P(umfLevelZeroMemoryProviderParamsSetResidentDevices(NULL, devices, 2));
    P(umfLevelZeroMemoryProviderParamsSetResidentDevices(params, NULL, 1));
    P(umfLevelZeroMemoryProviderParamsSetResidentDevices(params, NULL, 0));
    ze_device_handle_t same[2] = {devices[0], devices[0]};
    P(umfLevelZeroMemoryProviderParamsSetResidentDevices(params, same, 2));
    P(umfMemoryProviderCreate(OPS(), NULL, &p));
    P(umfMemoryProviderCreate(OPS(), params, &p)); /* no context */
    P(umfLevelZeroMemoryProviderParamsSetContext(params, context));
    P(umfMemoryProviderCreate(OPS(), params, &p)); /* no device */
    P(umfLevelZeroMemoryProviderParamsSetDevice(params, devices[0]));
    BETTER(umfMemoryProviderCreate(OPS(), params, &p)); /* no type */
    P(umfLevelZeroMemoryProviderParamsSetMemoryType(params, UMF_MEMORY_TYPE_HOST));
    P(umfMemoryProviderCreate(OPS(), params, &p)); /* a device for memory of the host */
    P(umfLevelZeroMemoryProviderParamsSetMemoryType(params, UMF_MEMORY_TYPE_DEVICE));
    P(umfLevelZeroMemoryProviderParamsSetDeviceOrdinal(params, 99));
    P(umfMemoryProviderCreate(OPS(), params, &p) != 0); /* no such memory */
    P(umfLevelZeroMemoryProviderParamsSetDeviceOrdinal(params, 0));
    P(umfLevelZeroMemoryProviderParamsSetName(params, "mine"));
    P(umfLevelZeroMemoryProviderParamsSetFreePolicy(params, UMF_LEVEL_ZERO_MEMORY_PROVIDER_FREE_POLICY_BLOCKING_FREE));
    P(umfMemoryProviderCreate(OPS(), params, &p));
    int value = 7;
    P(umfCtlGet("umf.provider.by_handle.{}.params.use_import_export_for_IPC", &value, sizeof value, p));
    P(value);
    void *m = NULL;
    P(umfMemoryProviderAlloc(p, 100, 0, &m));
    P(umfMemoryProviderFree(p, m, 100));
    P(umfMemoryProviderDestroy(p));
    p = NULL;

    /* Residency: of what is there already, and of what comes. */
    P(umfLevelZeroMemoryProviderParamsSetFreePolicy(params, UMF_LEVEL_ZERO_MEMORY_PROVIDER_FREE_POLICY_DEFAULT));
    P(umfLevelZeroMemoryProviderParamsSetResidentDevices(params, devices + 1, 1));
    P(umfMemoryProviderCreate(OPS(), params, &p));
    umf_memory_pool_handle_t pool = NULL;
    P(umfPoolCreate(umfProxyPoolOps(), p, NULL, 0, &pool));
    void *block = umfPoolMalloc(pool, 100);
    P(block != NULL);
    P(driver_count("residents"));
    P(umfLevelZeroMemoryProviderResidentDeviceChange(p, devices[1], true));
    P(umfLevelZeroMemoryProviderResidentDeviceChange(p, devices[0], false));
    P(umfLevelZeroMemoryProviderResidentDeviceChange(p, devices[0], true));
    P(driver_count("residents"));
    P(umfLevelZeroMemoryProviderResidentDeviceChange(p, devices[1], false));
    P(driver_count("residents"));
    if (driver_faults("zeContextMakeMemoryResident:*=ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY")) {
        P(umfLevelZeroMemoryProviderResidentDeviceChange(p, devices[1], true));
        void *none = umfPoolMalloc(pool, 100);
        P(none != NULL);
        driver_faults("");
        /* The device was not added: an error leaves all as it was. */
        BETTER(umfLevelZeroMemoryProviderResidentDeviceChange(p, devices[1], false));
    }
    P(umfPoolFree(pool, block));
    P(umfPoolDestroy(pool));
    P(umfMemoryProviderDestroy(p));
    p = NULL;
    P(umfLevelZeroMemoryProviderParamsDestroy(params));

    /* (The original takes any provider for one of its own, and any pointer for one.) */
    umf_os_memory_provider_params_handle_t os;
    umfOsMemoryProviderParamsCreate(&os);
    umfMemoryProviderCreate(umfOsMemoryProviderOps(), os, &p);
    umfOsMemoryProviderParamsDestroy(os);
    if (umf_is_ours) {
        BETTER(umfLevelZeroMemoryProviderResidentDeviceChange(p, devices[0], true));
        BETTER(umfLevelZeroMemoryProviderResidentDeviceChange(NULL, devices[0], true));
    }
    umfMemoryProviderDestroy(p);
}
