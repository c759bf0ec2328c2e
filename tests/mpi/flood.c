/* Thousands of unexpected messages, and thousands of posted receives, which are matched in another order
   than they were posted. */

#include "check.h"

enum { MESSAGES = 10000, LONG = 200, LONG_SIZE = 60000 };

int main(int count, char **words) {
    begin(&count, &words);
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    MPI_Request *requests = memory(MESSAGES * sizeof *requests);
    int(*values)[2] = memory(MESSAGES * sizeof *values), value[2];

    /* Unexpected: all are sent, by no receive posted. */
    for (int number = 0; number < MESSAGES; number++) {
        values[number][0] = rank, values[number][1] = number;
        MPI_Isend(values[number], 2, MPI_INT, to, number, MPI_COMM_WORLD, &requests[number]);
    }
    unsigned char *out = memory(LONG_SIZE), *in = memory(LONG_SIZE);
    MPI_Request *longs = memory(LONG * sizeof *longs);
    fill(out, LONG_SIZE, (unsigned)rank);
    for (int number = 0; number < LONG; number++)
        MPI_Isend(out, LONG_SIZE, MPI_BYTE, to, MESSAGES + number, MPI_COMM_WORLD, &longs[number]);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int number = LONG - 1; number >= 0; number--) {
        memset(in, 0, LONG_SIZE);
        MPI_Recv(in, LONG_SIZE, MPI_BYTE, from, MESSAGES + number, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(filled(in, LONG_SIZE, (unsigned)from));
    }
    /* The last hundred in the other order, then the rest in the order of the sends. */
    for (int number = MESSAGES - 1; number >= MESSAGES - 100; number--) {
        MPI_Recv(value, 2, MPI_INT, from, number, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(value[0] == from && value[1] == number);
    }
    for (int number = 0; number < MESSAGES - 100; number++) {
        MPI_Status status;
        MPI_Recv(value, 2, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        CHECK(value[0] == from && value[1] == number && status.MPI_TAG == number);
    }
    MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
    MPI_Waitall(LONG, longs, MPI_STATUSES_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);

    /* Posted: all receives, then all sends, the last tag first. */
    memset(values, 0xff, MESSAGES * sizeof *values);
    for (int number = 0; number < MESSAGES; number++)
        MPI_Irecv(values[number], 2, MPI_INT, number % 2 ? from : MPI_ANY_SOURCE, number, MPI_COMM_WORLD,
                  &requests[number]);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int number = MESSAGES - 1; number >= 0; number--) {
        value[0] = rank, value[1] = number * 3;
        MPI_Send(value, 2, MPI_INT, to, number, MPI_COMM_WORLD);
    }
    MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
    for (int number = 0; number < MESSAGES; number++)
        CHECK(values[number][0] == from && values[number][1] == number * 3);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
