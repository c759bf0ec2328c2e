/* Threads of each rank send and receive at the same time (MPI_THREAD_MULTIPLE). */

#include "check.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 200 };

static int size_of(int round) { return round % 20 ? 1 + round * 7 : 200000; }

/* Exchanges messages with the same thread of each other rank, by its number as the tag. */
static void *exchange(void *argument) {
    int thread = *(int *)argument;
    unsigned char *out = memory(200000), *in = memory(200000);
    for (int round = 0; round < ROUNDS; round++)
        for (int distance = 1; distance < ranks; distance++) {
            int to = (rank + distance) % ranks, from = (rank + ranks - distance) % ranks, size = size_of(round);
            unsigned seed = (unsigned)(round * 100 + thread);
            MPI_Request requests[2];
            MPI_Status statuses[2];
            fill(out, (size_t)size, seed + (unsigned)rank * 100000u);
            MPI_Irecv(in, size, MPI_BYTE, round % 2 ? from : MPI_ANY_SOURCE, 1000 * distance + thread,
                      MPI_COMM_WORLD, &requests[0]);
            MPI_Isend(out, size, MPI_BYTE, to, 1000 * distance + thread, MPI_COMM_WORLD, &requests[1]);
            MPI_Waitall(2, requests, statuses);
            CHECK(statuses[0].MPI_SOURCE == from);
            CHECK(filled(in, (size_t)size, seed + (unsigned)from * 100000u));
        }
    free(out);
    free(in);
    return NULL;
}

int main(int count, char **words) {
    int provided, numbers[THREADS];
    pthread_t threads[THREADS];
    MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(provided == MPI_THREAD_MULTIPLE);
    for (int thread = 0; thread < THREADS; thread++) {
        numbers[thread] = thread;
        CHECK(!pthread_create(&threads[thread], NULL, exchange, &numbers[thread]));
    }
    for (int thread = 0; thread < THREADS; thread++) pthread_join(threads[thread], NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
