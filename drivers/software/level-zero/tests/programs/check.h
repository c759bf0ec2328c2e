/* What the programs beside this share: they use a driver as any program does. */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <dirent.h>
#include <level_zero/ze_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                     \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)

#define ZE_IS(expected, call)                                                             \
  do {                                                                                    \
    ze_result_t answered = (call);                                                        \
    if (answered != (expected)) {                                                         \
      fprintf(stderr, "%s:%d: %s: %x instead of %x\n", __FILE__, __LINE__, #call,         \
              (unsigned)answered, (unsigned)(expected));                                  \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)

#define ZE(call) ZE_IS(ZE_RESULT_SUCCESS, call)

static ze_driver_handle_t driver;
static ze_device_handle_t device;
static ze_context_handle_t context;
static ze_command_list_handle_t now; /* immediate and synchronous */

static inline void start(void) {
  uint32_t count = 0;
  ZE(zeInit(0));
  ZE(zeDriverGet(&count, NULL));
  CHECK(count == 1);
  ZE(zeDriverGet(&count, &driver));
  count = 1;
  ZE(zeDeviceGet(driver, &count, &device));
  ze_context_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC};
  ZE(zeContextCreate(driver, &desc, &context));
  ze_command_queue_desc_t queue = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
                                   .mode = ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS};
  ZE(zeCommandListCreateImmediate(context, device, &queue, &now));
}

static inline void finish(void) {
  ZE(zeCommandListDestroy(now));
  ZE(zeContextDestroy(context));
}

static inline void *device_memory(size_t size) {
  void *memory = NULL;
  ze_device_mem_alloc_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC};
  ZE(zeMemAllocDevice(context, &desc, size, 0, device, &memory));
  CHECK(memory != NULL);
  return memory;
}

static inline void *host_memory(size_t size) {
  void *memory = NULL;
  ze_host_mem_alloc_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC};
  ZE(zeMemAllocHost(context, &desc, size, 0, &memory));
  CHECK(memory != NULL);
  return memory;
}

static inline void copy(void *to, const void *from, size_t size) {
  ZE(zeCommandListAppendMemoryCopy(now, to, from, size, NULL, 0, NULL));
}

static inline int fds(void) {
  int count = 0;
  DIR *all = opendir("/proc/self/fd");
  CHECK(all != NULL);
  while (readdir(all) != NULL) count++;
  closedir(all);
  return count;
}

/* Mappings that are memory of a device, or in the address range of devices (as configured in the driver). */
static inline int mappings(void) {
  char line[1024];
  int count = 0;
  FILE *all = fopen("/proc/self/maps", "r");
  CHECK(all != NULL);
  while (fgets(line, sizeof line, all) != NULL)
    count += strstr(line, "ze-soft") != NULL || strtoull(line, NULL, 16) >> 40 == 0x10;
  fclose(all);
  return count;
}

#endif
