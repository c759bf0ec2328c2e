/* Starts the library, and says with which rights. */

#include <stdio.h>
#include <sys/auxv.h>
#include <umf.h>
#include <unistd.h>

int main(void) {
    printf("umfInit: %d\n", umfInit());
    printf("effective user: %u\n", (unsigned)geteuid());
    printf("secure: %lu\n", getauxval(AT_SECURE));
    return umfTearDown();
}
