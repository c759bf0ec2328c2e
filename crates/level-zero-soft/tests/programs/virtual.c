/* Reserved addresses, physical memory mapped there, and what may be done with it. */
#include "check.h"

int main(void) {
  start();
  size_t page = 0;
  ZE(zeVirtualMemQueryPageSize(context, device, 1 << 16, &page));
  CHECK(page != 0 && (page & (page - 1)) == 0);
  size_t size = 4 * page;
  void *start_address = NULL;
  /* The address is a hint; the first validation layers wanted one. */
  ZE(zeVirtualMemReserve(context, (void *)(uintptr_t)0x200000000000, size, &start_address));
  char *at = start_address;
  CHECK(at != NULL);

  ze_physical_mem_handle_t one, two;
  ze_physical_mem_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC, .size = 2 * page};
  ZE(zePhysicalMemCreate(context, device, &desc, &one));
  ZE(zePhysicalMemCreate(context, device, &desc, &two));
  desc.size = page + 1;
  ze_physical_mem_handle_t odd = NULL;
  ZE_IS(ZE_RESULT_ERROR_UNSUPPORTED_SIZE, zePhysicalMemCreate(context, device, &desc, &odd));

  uint8_t *host = host_memory(size), *back = malloc(size);
  for (size_t i = 0; i < size; i++) host[i] = (uint8_t)(i / page * 50 + i);
  /* Nothing is there yet. */
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeCommandListAppendMemoryCopy(now, at, host, 1, NULL, 0, NULL));
  /* The second half of one, then all of two, and the first half of one. */
  ZE(zeVirtualMemMap(context, at, page, one, page, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
  ZE(zeVirtualMemMap(context, at + page, 2 * page, two, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
  ZE(zeVirtualMemMap(context, at + 3 * page, page, one, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT,
        zeVirtualMemMap(context, at, page, two, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
  copy(at, host, size);
  memset(back, 0, size);
  copy(back, at, size);
  CHECK(memcmp(host, back, size) == 0);

  /* The same pages at another address. */
  ZE(zeVirtualMemUnmap(context, at, page));
  ZE(zeVirtualMemMap(context, at, page, one, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY));
  copy(back, at, page);
  CHECK(memcmp(host + 3 * page, back, page) == 0);
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeCommandListAppendMemoryCopy(now, at, host, 1, NULL, 0, NULL));
  ze_memory_access_attribute_t access = ZE_MEMORY_ACCESS_ATTRIBUTE_NONE;
  size_t told = 0;
  ZE(zeVirtualMemGetAccessAttribute(context, at, page, &access, &told));
  CHECK(access == ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY && told == page);
  ZE(zeVirtualMemSetAccessAttribute(context, at, page, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
  copy(at, host, page);
  ZE(zeVirtualMemSetAccessAttribute(context, at, page, ZE_MEMORY_ACCESS_ATTRIBUTE_NONE));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeCommandListAppendMemoryCopy(now, back, at, 1, NULL, 0, NULL));

  ze_memory_allocation_properties_t properties = {
      .stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES};
  ZE(zeMemGetAllocProperties(context, at + page, &properties, NULL));
  CHECK(properties.type == ZE_MEMORY_TYPE_DEVICE && properties.id != 0);
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeMemFree(context, at + page));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeVirtualMemFree(context, at, size));
  ZE(zeVirtualMemUnmap(context, at, size));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeVirtualMemUnmap(context, at, size));
  ZE(zePhysicalMemDestroy(context, one));
  ZE(zePhysicalMemDestroy(context, two));
  ZE(zeVirtualMemFree(context, at, size));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeVirtualMemFree(context, at, size));
  ZE(zeMemFree(context, host));
  free(back);
  finish();
  puts("done");
  return 0;
}
