/* Events order commands of two queues, and tell times. */
#include "check.h"

enum { SIZE = 1 << 20 };

static ze_event_pool_handle_t pool_of(uint32_t count, ze_event_pool_flags_t flags) {
  ze_event_pool_handle_t pool;
  ze_event_pool_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, .flags = flags, .count = count};
  ZE(zeEventPoolCreate(context, &desc, 1, &device, &pool));
  return pool;
}

static ze_event_handle_t event_of(ze_event_pool_handle_t pool, uint32_t index) {
  ze_event_handle_t event;
  ze_event_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_EVENT_DESC,
                          .index = index,
                          .signal = ZE_EVENT_SCOPE_FLAG_HOST,
                          .wait = ZE_EVENT_SCOPE_FLAG_HOST};
  ZE(zeEventCreate(pool, &desc, &event));
  return event;
}

static ze_command_list_handle_t later(void) {
  ze_command_list_handle_t list;
  ze_command_queue_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
                                  .mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS};
  ZE(zeCommandListCreateImmediate(context, device, &desc, &list));
  return list;
}

static void between_queues(void) {
  ze_event_pool_handle_t pool = pool_of(3, ZE_EVENT_POOL_FLAG_HOST_VISIBLE | ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP);
  ze_event_handle_t go = event_of(pool, 0), half = event_of(pool, 1), done = event_of(pool, 2);
  ze_command_list_handle_t one = later(), two = later();
  uint8_t *from = host_memory(SIZE), *to = host_memory(SIZE);
  void *there = device_memory(SIZE);
  memset(from, 1, SIZE);
  memset(to, 0, SIZE);
  /* The second queue is filled first, and waits for the first, which waits for a third. */
  ZE(zeCommandListAppendMemoryCopy(two, to, there, SIZE, done, 1, &half));
  ZE(zeCommandListAppendMemoryCopy(one, there, from, SIZE, half, 1, &go));
  ZE_IS(ZE_RESULT_NOT_READY, zeEventHostSynchronize(done, 20 * 1000 * 1000));
  ZE_IS(ZE_RESULT_NOT_READY, zeEventQueryStatus(half));
  CHECK(to[0] == 0);
  memset(from, 2, SIZE); /* Nothing was read before the event was signalled. */
  ZE(zeCommandListAppendSignalEvent(now, go));
  ZE(zeEventHostSynchronize(done, UINT64_MAX));
  for (size_t i = 0; i < SIZE; i++) CHECK(to[i] == 2);

  ze_kernel_timestamp_result_t first, second;
  ZE(zeEventQueryKernelTimestamp(half, &first));
  ZE(zeEventQueryKernelTimestamp(done, &second));
  CHECK(first.global.kernelStart != 0 && first.global.kernelStart <= first.global.kernelEnd);
  CHECK(first.global.kernelEnd <= second.global.kernelStart);

  ZE(zeEventHostReset(done));
  ZE_IS(ZE_RESULT_NOT_READY, zeEventQueryStatus(done));
  ZE(zeCommandListAppendSignalEvent(now, done));
  ZE(zeEventQueryStatus(done));
  ZE(zeCommandListDestroy(one));
  ZE(zeCommandListDestroy(two));
  ZE(zeEventDestroy(go));
  ZE(zeEventDestroy(half));
  ZE(zeEventDestroy(done));
  ZE(zeEventPoolDestroy(pool));
  ZE(zeMemFree(context, there));
  ZE(zeMemFree(context, from));
  ZE(zeMemFree(context, to));
}

int main(void) {
  start();
  between_queues();
  finish();
  puts("done");
  return 0;
}
