/* Wrong calls are answered, and do no harm. */
#include "check.h"

int main(void) {
  start();
  void *memory = device_memory(4096), *none = NULL;
  ze_device_mem_alloc_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC};
  ze_context_handle_t stale = context, made_up = (ze_context_handle_t)(uintptr_t)0x1234;
  ze_context_desc_t context_desc = {.stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC};

  /* Handles that are null, invented, of another kind, or destroyed. */
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_HANDLE, zeMemAllocDevice(NULL, &desc, 1, 0, device, &none));
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_HANDLE, zeMemAllocDevice(made_up, &desc, 1, 0, device, &none));
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_HANDLE,
        zeMemAllocDevice((ze_context_handle_t)device, &desc, 1, 0, device, &none));
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_HANDLE,
        zeMemAllocDevice(context, &desc, 1, 0, (ze_device_handle_t)context, &none));
  ZE(zeContextCreate(driver, &context_desc, &stale));
  ZE(zeContextDestroy(stale));
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_HANDLE, zeContextDestroy(stale));
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_HANDLE, zeMemFree(stale, memory));

  /* Pointers. */
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_POINTER, zeMemAllocDevice(context, NULL, 1, 0, device, &none));
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_POINTER, zeMemAllocDevice(context, &desc, 1, 0, device, NULL));
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_POINTER, zeMemFree(context, NULL));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeMemFree(context, (char *)memory + 64));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeMemFree(context, &none));

  /* Sizes and alignments. */
  ZE_IS(ZE_RESULT_ERROR_UNSUPPORTED_SIZE, zeMemAllocDevice(context, &desc, 0, 0, device, &none));
  ZE_IS(ZE_RESULT_ERROR_UNSUPPORTED_SIZE, zeMemAllocDevice(context, &desc, SIZE_MAX, 0, device, &none));
  ZE_IS(ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT, zeMemAllocDevice(context, &desc, 1, 3, device, &none));
  CHECK(none == NULL);

  /* Copies that reach out of an allocation, or to where nothing is. */
  char bytes[8192] = {0};
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT,
        zeCommandListAppendMemoryCopy(now, memory, bytes, 4097, NULL, 0, NULL));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT,
        zeCommandListAppendMemoryCopy(now, memory, (void *)(uintptr_t)64, 4096, NULL, 0, NULL));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT,
        zeCommandListAppendMemoryCopy(now, (char *)memory + 4096, bytes, 1, NULL, 0, NULL));
  ZE_IS(ZE_RESULT_ERROR_INVALID_SIZE, zeCommandListAppendMemoryFill(now, memory, bytes, 3, 6, NULL, 0, NULL));
  ZE_IS(ZE_RESULT_ERROR_INVALID_SIZE, zeCommandListAppendMemoryCopy(now, memory, bytes, 8, NULL, 1, NULL));
  ze_event_handle_t wrong = (ze_event_handle_t)now;
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_HANDLE,
        zeCommandListAppendMemoryCopy(now, memory, bytes, 8, wrong, 0, NULL));

  /* Handles for other processes that are none. */
  ze_ipc_mem_handle_t handle;
  memset(&handle, 0xff, sizeof handle);
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeMemOpenIpcHandle(context, device, handle, 0, &none));
  ZE(zeMemGetIpcHandle(context, memory, &handle));
  for (size_t at = 0; at < sizeof handle; at++)
    for (int bit = 0; bit < 8; bit++) {
      ze_ipc_mem_handle_t bent = handle;
      bent.data[at] ^= (char)(1 << bit);
      if (zeMemOpenIpcHandle(context, device, bent, 0, &none) == ZE_RESULT_SUCCESS)
        ZE(zeMemCloseIpcHandle(context, none));
    }
  int fd = 0; /* No memory. */
  memcpy(handle.data, &fd, sizeof fd);
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeMemOpenIpcHandle(context, device, handle, 0, &none));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeMemGetIpcHandle(context, (char *)memory + 1, &handle));

  /* What is not there. */
  ze_module_desc_t module_desc = {.stype = ZE_STRUCTURE_TYPE_MODULE_DESC,
                                  .inputSize = 4,
                                  .pInputModule = (const uint8_t *)bytes};
  ze_module_handle_t module = NULL;
  ZE_IS(ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, zeModuleCreate(context, device, &module_desc, &module, NULL));

  ZE(zeMemFree(context, memory));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeMemFree(context, memory));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT,
        zeCommandListAppendMemoryCopy(now, memory, bytes, 1, NULL, 0, NULL));
  finish();
  ZE_IS(ZE_RESULT_ERROR_INVALID_NULL_HANDLE, zeCommandListDestroy(now));
  puts("done");
  return 0;
}
