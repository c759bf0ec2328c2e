/* Touches memory of a device, which ends the process. */
#include "check.h"

int main(int count, char **arguments) {
  start();
  volatile char *memory = device_memory(4096);
  puts("allocated");
  fflush(stdout);
  if (count > 1 && strcmp(arguments[1], "write") == 0)
    *memory = 1;
  else
    printf("%d\n", *memory);
  puts("touched");
  return 0;
}
