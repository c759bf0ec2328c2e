/* Two processes share device memory by the bytes of a handle.
 *
 *   ipc raw ROUNDS    the bytes go to the driver unchanged
 *   ipc local ROUNDS  the client brings the fd over itself and writes its own number over the first four bytes
 */
#include "check.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { SIZE = 1 << 16, WARM_UP = 3 };

struct message {
  ze_ipc_mem_handle_t handle;
  uint32_t seed;
  pid_t pid;
};

static void say(int socket, const void *bytes, size_t size) { CHECK(write(socket, bytes, size) == (ssize_t)size); }
static void hear(int socket, void *bytes, size_t size) { CHECK(read(socket, bytes, size) == (ssize_t)size); }

/* Gives a handle back. Loaders before 1.9 do not know that; then the memory takes its handles along when it is freed. */
static void put(ze_ipc_mem_handle_t handle, ze_result_t expected) {
  ze_result_t (*put)(ze_context_handle_t, ze_ipc_mem_handle_t) = NULL;
  *(void **)&put = dlsym(RTLD_DEFAULT, "zeMemPutIpcHandle");
  if (put != NULL) ZE_IS(expected, put(context, handle));
}

static void fill(void *there, uint32_t seed) {
  ZE(zeCommandListAppendMemoryFill(now, there, &seed, sizeof seed, SIZE, NULL, 0, NULL));
}

static void expect(const void *there, uint32_t seed) {
  static uint32_t back[SIZE / 4];
  copy(back, there, SIZE);
  for (size_t i = 0; i < SIZE / 4; i++) CHECK(back[i] == seed);
}

static void open_use_close(struct message message, int by_itself) {
  int fd = -1;
  if (by_itself) {
    int producer = (int)syscall(SYS_pidfd_open, message.pid, 0), number;
    CHECK(producer >= 0);
    memcpy(&number, message.handle.data, sizeof number);
    int there = (int)syscall(SYS_pidfd_getfd, producer, number, 0);
    /* A number that the producer does not have: a driver that takes it for the producer's fails. */
    fd = fcntl(there, F_DUPFD_CLOEXEC, 500);
    CHECK(there >= 0 && fd >= 0);
    close(there);
    close(producer);
    memcpy(message.handle.data, &fd, sizeof fd);
  }
  void *there = NULL, *again = NULL;
  ZE(zeMemOpenIpcHandle(context, device, message.handle, 0, &there));
  /* Opening it again returns the same address, which is closed once. */
  ZE(zeMemOpenIpcHandle(context, device, message.handle, 0, &again));
  CHECK(again == there);
  if (fd >= 0) close(fd);
  ze_memory_allocation_properties_t properties = {
      .stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES};
  ZE(zeMemGetAllocProperties(context, there, &properties, NULL));
  CHECK(properties.type == ZE_MEMORY_TYPE_DEVICE && properties.id != 0);
  ze_ipc_mem_handle_t other;
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeMemGetIpcHandle(context, there, &other));
  expect(there, message.seed);
  fill(there, message.seed + 1);
  ZE(zeMemCloseIpcHandle(context, there));
  ZE_IS(ZE_RESULT_ERROR_INVALID_ARGUMENT, zeMemCloseIpcHandle(context, there));
}

static int client(int socket, int by_itself, unsigned rounds) {
  int fds_before = 0, mappings_before = 0;
  start();
  for (unsigned round = 0; round < rounds + WARM_UP; round++) {
    if (round == WARM_UP) fds_before = fds(), mappings_before = mappings();
    struct message message;
    hear(socket, &message, sizeof message);
    open_use_close(message, by_itself);
    say(socket, "k", 1);
  }
  CHECK(fds() == fds_before);
  CHECK(mappings() == mappings_before);
  finish();
  return 0;
}

int main(int count, char **arguments) {
  CHECK(count == 3);
  int by_itself = strcmp(arguments[1], "local") == 0, sockets[2], status;
  unsigned rounds = (unsigned)atoi(arguments[2]);
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    close(sockets[0]);
    return client(sockets[1], by_itself, rounds);
  }
  close(sockets[1]);
  /* Only matters where the kernel restricts which processes may take fds. */
  prctl(PR_SET_PTRACER, child, 0, 0, 0);
  start();
  int fds_before = 0, mappings_before = 0;
  for (unsigned round = 0; round < rounds + WARM_UP; round++) {
    if (round == WARM_UP) fds_before = fds(), mappings_before = mappings();
    struct message message = {.seed = round * 2, .pid = getpid()};
    void *there = device_memory(SIZE);
    fill(there, message.seed);
    ze_ipc_mem_handle_t same;
    ZE(zeMemGetIpcHandle(context, there, &message.handle));
    ZE(zeMemGetIpcHandle(context, there, &same));
    CHECK(memcmp(&same, &message.handle, sizeof same) == 0);
    say(sockets[0], &message, sizeof message);
    char answer;
    hear(sockets[0], &answer, 1);
    expect(there, message.seed + 1);
    /* As often as it was requested, and no more. */
    put(same, ZE_RESULT_SUCCESS);
    put(message.handle, ZE_RESULT_SUCCESS);
    put(message.handle, ZE_RESULT_ERROR_INVALID_ARGUMENT);
    ZE(zeMemFree(context, there));
  }
  CHECK(fds() == fds_before);
  CHECK(mappings() == mappings_before);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  finish();
  puts("done");
  return 0;
}
