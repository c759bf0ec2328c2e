/* Prints whether the C library's heap is initialised. */

#include <malloc.h>
#include <unistd.h>

int main(void) {
    if (mallinfo2().arena > 0)
        return write(1, "set up\n", 7) != 7;
    return write(1, "not set up\n", 11) != 11;
}
