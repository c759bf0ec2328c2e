/* Allocates each kind of memory, copies and fills both ways, in lists and at once. */
#include "check.h"

enum { SIZE = 1 << 20 };

static void fill_with(uint8_t *memory, size_t size, unsigned seed) {
  for (size_t i = 0; i < size; i++) memory[i] = (uint8_t)(i * 31 + seed);
}

static void round_trip(void) {
  uint8_t *host = host_memory(SIZE), *back = malloc(SIZE);
  void *there = device_memory(SIZE);
  fill_with(host, SIZE, 7);
  memset(back, 0, SIZE);
  copy(there, host, SIZE);
  copy(back, there, SIZE);
  CHECK(memcmp(host, back, SIZE) == 0);
  /* A part, at an odd place. */
  copy((char *)there + 1001, host, 77);
  copy(back, (char *)there + 1000, 79);
  CHECK(back[0] == host[1000] && memcmp(back + 1, host, 77) == 0 && back[78] == host[1078]);

  uint32_t pattern = 0xdeadbeef;
  ZE(zeCommandListAppendMemoryFill(now, there, &pattern, sizeof pattern, SIZE, NULL, 0, NULL));
  copy(back, there, SIZE);
  for (size_t i = 0; i < SIZE; i += 4) CHECK(memcmp(back + i, &pattern, 4) == 0);
  uint8_t byte = 0x5a;
  ZE(zeCommandListAppendMemoryFill(now, (char *)there + 3, &byte, 1, 9, NULL, 0, NULL));
  copy(back, there, 16);
  CHECK(back[2] == 0xad && back[3] == 0x5a && back[11] == 0x5a && back[12] != 0x5a);
  ZE(zeMemFree(context, there));
  ZE(zeMemFree(context, host));
  free(back);
}

static void shared_memory(void) {
  uint8_t *shared = NULL, *back = malloc(4096);
  ze_device_mem_alloc_desc_t on_device = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC};
  ze_host_mem_alloc_desc_t on_host = {.stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC};
  ZE(zeMemAllocShared(context, &on_device, &on_host, 4096, 64, device, (void **)&shared));
  fill_with(shared, 4096, 3);
  copy(back, shared, 4096);
  CHECK(memcmp(back, shared, 4096) == 0);

  ze_memory_allocation_properties_t properties = {
      .stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES};
  ze_device_handle_t owner = NULL;
  ZE(zeMemGetAllocProperties(context, shared + 5, &properties, &owner));
  CHECK(properties.type == ZE_MEMORY_TYPE_SHARED && properties.id != 0 && owner == device);
  CHECK(properties.pageSize >= 4096);
  void *base = NULL;
  size_t size = 0;
  ZE(zeMemGetAddressRange(context, shared + 5, &base, &size));
  CHECK(base == shared && size == 4096);
  ZE(zeMemGetAllocProperties(context, back, &properties, NULL));
  CHECK(properties.type == ZE_MEMORY_TYPE_UNKNOWN);
  ZE(zeMemFree(context, shared));
  free(back);
}

/* A queue, two lists and a fence; the lists are executed twice. */
static void lists(void) {
  ze_command_queue_handle_t queue;
  ze_command_list_handle_t list[2];
  ze_fence_handle_t fence;
  ze_command_queue_desc_t queue_desc = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
                                        .mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS};
  ze_command_list_desc_t list_desc = {.stype = ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC};
  ze_fence_desc_t fence_desc = {.stype = ZE_STRUCTURE_TYPE_FENCE_DESC};
  ZE(zeCommandQueueCreate(context, device, &queue_desc, &queue));
  ZE(zeCommandListCreate(context, device, &list_desc, &list[0]));
  ZE(zeCommandListCreate(context, device, &list_desc, &list[1]));
  ZE(zeFenceCreate(queue, &fence_desc, &fence));
  ZE_IS(ZE_RESULT_NOT_READY, zeFenceQueryStatus(fence));

  uint8_t *host = host_memory(SIZE), *back = host_memory(SIZE);
  void *one = device_memory(SIZE), *two = device_memory(SIZE);
  ZE(zeCommandListAppendMemoryCopy(list[0], one, host, SIZE, NULL, 0, NULL));
  ZE(zeCommandListAppendBarrier(list[0], NULL, 0, NULL));
  ZE(zeCommandListAppendMemoryCopy(list[0], two, one, SIZE, NULL, 0, NULL));
  ZE(zeCommandListAppendMemoryCopy(list[1], back, two, SIZE, NULL, 0, NULL));
  ZE(zeCommandListClose(list[0]));
  ZE(zeCommandListClose(list[1]));
  for (unsigned round = 0; round < 2; round++) {
    fill_with(host, SIZE, round);
    memset(back, 0xff, SIZE);
    ZE(zeCommandQueueExecuteCommandLists(queue, 2, list, fence));
    ze_result_t answer;
    while ((answer = zeFenceQueryStatus(fence)) == ZE_RESULT_NOT_READY) usleep(100);
    CHECK(answer == ZE_RESULT_SUCCESS);
    CHECK(memcmp(host, back, SIZE) == 0);
    ZE(zeFenceReset(fence));
    ZE_IS(ZE_RESULT_NOT_READY, zeFenceQueryStatus(fence));
  }
  ZE(zeCommandListReset(list[0]));
  ZE(zeFenceDestroy(fence));
  ZE(zeCommandListDestroy(list[0]));
  ZE(zeCommandListDestroy(list[1]));
  ZE(zeCommandQueueDestroy(queue));
  ZE(zeMemFree(context, one));
  ZE(zeMemFree(context, two));
  ZE(zeMemFree(context, host));
  ZE(zeMemFree(context, back));
}

static void all(void) {
  round_trip();
  shared_memory();
  lists();
}

int main(void) {
  start();
  all(); /* What threads and libraries take once. */
  int fds_before = fds(), mappings_before = mappings();
  for (int round = 0; round < 3; round++) all();
  CHECK(fds() == fds_before);
  CHECK(mappings() == mappings_before);
  finish();
  puts("done");
  return 0;
}
