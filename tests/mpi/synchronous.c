/* MPI_Ssend and MPI_Issend complete after the receive has started, not before. */

#include "check.h"

int main(int count, char **words) {
    begin(&count, &words);
    CHECK(ranks % 2 == 0);
    int peer = rank ^ 1, done;
    static const int sizes[] = {0, 4, 1000, 20000, 300000, 3000000};
    unsigned char *bytes = memory(3000000);
    for (int index = 0; index < (int)(sizeof sizes / sizeof *sizes); index++) {
        int size = sizes[index];
        if (rank % 2 == 0) {
            MPI_Request request;
            fill(bytes, (size_t)size, (unsigned)index);
            MPI_Issend(bytes, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &request);
            /* The peer answers these before it receives, and makes progress by that. */
            for (int turn = 0; turn < 50; turn++) {
                MPI_Sendrecv_replace(&turn, 1, MPI_INT, peer, 2, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Test(&request, &done, MPI_STATUS_IGNORE);
                CHECK(!done);
            }
            MPI_Send(&index, 1, MPI_INT, peer, 3, MPI_COMM_WORLD);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            MPI_Ssend(bytes, size, MPI_BYTE, peer, 4, MPI_COMM_WORLD);
        } else {
            int value;
            for (int turn = 0; turn < 50; turn++)
                MPI_Sendrecv_replace(&turn, 1, MPI_INT, peer, 2, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Recv(&value, 1, MPI_INT, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int tag = 1; tag <= 4; tag += 3) {
                memset(bytes, 0, (size_t)size);
                MPI_Recv(bytes, size, MPI_BYTE, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                CHECK(filled(bytes, (size_t)size, (unsigned)index));
            }
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
