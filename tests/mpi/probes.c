/* MPI_Probe, MPI_Iprobe, MPI_Mprobe and MPI_Improbe, of short and long messages. */

#include "check.h"

static const int sizes[] = {0, 5, 3000, 70000, 1500000};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void received(MPI_Status *status, int from, int tag, int size) {
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    CHECK(status->MPI_SOURCE == from && status->MPI_TAG == tag && count == size);
}

int main(int count, char **words) {
    begin(&count, &words);
    unsigned char *bytes = memory(1500000);
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks, flag;
    MPI_Request requests[4 * SIZES];
    MPI_Status status;
    MPI_Message message;
    unsigned char *out[SIZES];
    MPI_Iprobe(from, 99, MPI_COMM_WORLD, &flag, &status);
    CHECK(!flag);
    for (int index = 0; index < SIZES; index++) {
        out[index] = memory((size_t)sizes[index]);
        fill(out[index], (size_t)sizes[index], (unsigned)index);
        for (int kind = 0; kind < 4; kind++)
            MPI_Isend(out[index], sizes[index], MPI_BYTE, to, kind * 10 + index, MPI_COMM_WORLD,
                      &requests[4 * index + kind]);
    }
    /* The last ones first: probes find messages behind others, and leave those. */
    for (int index = SIZES - 1; index >= 0; index--) {
        int size = sizes[index];
        MPI_Probe(MPI_ANY_SOURCE, index, MPI_COMM_WORLD, &status);
        received(&status, from, index, size);
        MPI_Recv(bytes, size, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, &status);
        received(&status, from, index, size);
        CHECK(filled(bytes, (size_t)size, (unsigned)index));

        do MPI_Iprobe(from, 10 + index, MPI_COMM_WORLD, &flag, &status);
        while (!flag);
        received(&status, from, 10 + index, size);
        MPI_Recv(bytes, size, MPI_BYTE, from, 10 + index, MPI_COMM_WORLD, &status);
        CHECK(filled(bytes, (size_t)size, (unsigned)index));

        MPI_Mprobe(from, 20 + index, MPI_COMM_WORLD, &message, &status);
        received(&status, from, 20 + index, size);
        /* A matched message is not found again. */
        MPI_Iprobe(from, 20 + index, MPI_COMM_WORLD, &flag, &status);
        CHECK(!flag);
        memset(bytes, 0, (size_t)size);
        MPI_Mrecv(bytes, size, MPI_BYTE, &message, &status);
        received(&status, from, 20 + index, size);
        CHECK(filled(bytes, (size_t)size, (unsigned)index) && message == MPI_MESSAGE_NULL);

        do MPI_Improbe(MPI_ANY_SOURCE, 30 + index, MPI_COMM_WORLD, &flag, &message, &status);
        while (!flag);
        MPI_Request request;
        memset(bytes, 0, (size_t)size);
        MPI_Imrecv(bytes, size, MPI_BYTE, &message, &request);
        MPI_Wait(&request, &status);
        received(&status, from, 30 + index, size);
        CHECK(filled(bytes, (size_t)size, (unsigned)index));
    }
    MPI_Waitall(4 * SIZES, requests, MPI_STATUSES_IGNORE);
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &status);
    CHECK(!flag);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
