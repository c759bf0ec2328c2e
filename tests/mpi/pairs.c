/* Each rank sends to each other rank, messages of 0 bytes to 4 MiB. The contents are checked. Rank 0
   prints the bytes that all ranks sent to others. */

#include "check.h"

static const size_t sizes[] = {0, 1, 3, 8, 63, 64, 65, 255, 1000, 1024, 1025, 4095, 4096, 4097, 8192,
    16384, 32768, 65535, 65536, 65537, 262144, 1048576, 1048577, 4194304};

static unsigned seed(int from, int to, size_t size) { return (unsigned)(from * 64 + to) * 31 + (unsigned)size; }

int main(int count, char **words) {
    begin(&count, &words);
    unsigned long long volume = 0, all;
    size_t most = 4194304;
    unsigned char *out = memory(most), *in = memory(most + 1);
    for (size_t index = 0; index < sizeof sizes / sizeof *sizes; index++) {
        size_t size = sizes[index];
        for (int distance = 1; distance < ranks; distance++) {
            int to = (rank + distance) % ranks, from = (rank + ranks - distance) % ranks, received;
            MPI_Request requests[2];
            MPI_Status statuses[2];
            fill(out, size, seed(rank, to, size));
            memset(in, 0xa5, size + 1);
            MPI_Irecv(in, (int)most, MPI_BYTE, from, 7, MPI_COMM_WORLD, &requests[0]);
            MPI_Isend(out, (int)size, MPI_BYTE, to, 7, MPI_COMM_WORLD, &requests[1]);
            MPI_Waitall(2, requests, statuses);
            MPI_Get_count(&statuses[0], MPI_BYTE, &received);
            CHECK(received == (int)size && statuses[0].MPI_SOURCE == from && statuses[0].MPI_TAG == 7);
            CHECK(filled(in, size, seed(from, rank, size)) && in[size] == 0xa5);
            volume += size;
        }
    }
    MPI_Reduce(&volume, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf("volume: %llu\n", all);
    MPI_Finalize();
    return 0;
}
