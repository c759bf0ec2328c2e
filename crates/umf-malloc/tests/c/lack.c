/* Out of memory: allocations return NULL and raise no signal. `lack full` takes all memory; `lack huge` asks for
   impossible sizes. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    static char *blocks[100000];
    int count = 0;
    if (argc == 2 && strcmp(argv[1], "huge") == 0) {
        for (int bits = 44; bits < 48; bits++) {
            char *block = malloc(1ul << bits);
            count += block == NULL && errno == ENOMEM;
            errno = 0;
            free(block);
        }
        FILE *file = fopen("/proc/self/statm", "r");
        long size = 0, pages = 0;
        if (file == NULL || fscanf(file, "%ld %ld", &size, &pages) != 2) {
            return 1;
        }
        printf("%d refused, small: %d\n", count, pages < 16 << 8);
        return 0;
    }
    for (int round = 0; round < 2; round++) {
        for (count = 0; count < 100000; count++) {
            size_t size = count % 2 ? 1000 : 100000;
            if ((blocks[count] = malloc(size)) == NULL) {
                break;
            }
            memset(blocks[count], count, size);
        }
        int error = errno, wrong = 0;
        for (int n = 0; n < count; n++) {
            wrong += blocks[n][0] != (char)n || blocks[n][999] != (char)n;
            free(blocks[n]);
        }
        printf("some: %d, full: %d, wrong: %d\n", count > 20 && count < 100000, error == ENOMEM, wrong);
    }
    return 0;
}
