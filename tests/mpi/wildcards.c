/* Receives from any source with any tag, among receives for one source or one tag. Messages of one
   sender arrive in the order of their sends. */

#include "check.h"

enum { MESSAGES = 500 };

static int size_of(int number) { return number % 50 ? 8 : 100000; }

int main(int count, char **words) {
    begin(&count, &words);
    int *bytes = memory(100000), last[64], total = (ranks - 1) * MESSAGES;
    memset(last, 0xff, sizeof last);
    CHECK(ranks <= 64);
    if (rank) {
        for (int number = 0; number < MESSAGES; number++) {
            bytes[0] = rank, bytes[1] = number;
            MPI_Send(bytes, size_of(number), MPI_BYTE, 0, number % 13, MPI_COMM_WORLD);
        }
        /* Two tags, received in the other order. */
        for (int tag = 100; tag < 102; tag++) MPI_Send(&tag, 1, MPI_INT, 0, tag, MPI_COMM_WORLD);
    } else {
        for (int received = 0; received < total; received++) {
            MPI_Status status;
            int size;
            MPI_Recv(bytes, 100000, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            if (status.MPI_TAG >= 100) {
                /* It overtakes no message of its sender. */
                CHECK(last[status.MPI_SOURCE] == MESSAGES - 1 + status.MPI_TAG - 100);
                last[status.MPI_SOURCE]++, total++;
                continue;
            }
            MPI_Get_count(&status, MPI_BYTE, &size);
            CHECK(bytes[0] == status.MPI_SOURCE && bytes[1] == last[bytes[0]] + 1);
            CHECK(status.MPI_TAG == bytes[1] % 13 && size == size_of(bytes[1]));
            last[bytes[0]] = bytes[1];
        }
        for (int from = 1; from < ranks; from++)
            for (int tag = 101; tag >= 100; tag--) {
                if (last[from] >= MESSAGES + tag - 100) continue;
                MPI_Recv(bytes, 1, MPI_INT, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                CHECK(bytes[0] == tag);
            }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* One tag from any source; any tag from one source. */
    if (rank) {
        for (int tag = 1; tag < 4; tag++) MPI_Send(&rank, 1, MPI_INT, 0, tag, MPI_COMM_WORLD);
    } else {
        for (int received = 1, from; received < ranks; received++) {
            MPI_Status status;
            MPI_Recv(&from, 1, MPI_INT, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &status);
            CHECK(from == status.MPI_SOURCE && status.MPI_TAG == 2);
        }
        for (int from = 1, value; from < ranks; from++)
            for (int tag = 1; tag < 4; tag += 2) {
                MPI_Status status;
                MPI_Recv(&value, 1, MPI_INT, from, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
                CHECK(value == from && status.MPI_SOURCE == from && status.MPI_TAG == tag);
            }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
