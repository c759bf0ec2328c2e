/* What the MPI programs of this folder have in common: a check that ends the job, and contents that
   depend on sender, receiver and position. */

#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "rank %d: %s:%d: %s is false\n", rank, __FILE__, __LINE__, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 3);                                                   \
        }                                                                                   \
    } while (0)

static inline void begin(int *count, char ***words) {
    MPI_Init(count, words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

static inline void *memory(size_t size) {
    void *bytes = malloc(size ? size : 1);
    CHECK(bytes);
    return bytes;
}

/* The contents of a message are numbers of 4 bytes from a seed; the last bytes of an odd size, too. */
static inline unsigned word_at(unsigned seed, size_t index) {
    return (unsigned)(index * 2654435761u) ^ (seed * 0x9e3779b9u);
}

static inline void fill(unsigned char *bytes, size_t size, unsigned seed) {
    for (size_t at = 0; at < size; at += 4) {
        unsigned word = word_at(seed, at / 4);
        memcpy(bytes + at, &word, size - at < 4 ? size - at : 4);
    }
}

static inline int filled(const unsigned char *bytes, size_t size, unsigned seed) {
    for (size_t at = 0; at < size; at += 4) {
        unsigned word = word_at(seed, at / 4);
        if (memcmp(bytes + at, &word, size - at < 4 ? size - at : 4)) return 0;
    }
    return 1;
}
