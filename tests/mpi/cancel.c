/* Receives that are cancelled take no message, and those beside them do. */

#include "check.h"

int main(int count, char **words) {
    begin(&count, &words);
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks, cancelled, values[3], sent;
    MPI_Request requests[3], send;
    MPI_Status status;
    for (int round = 0; round < 200; round++) {
        for (int index = 0; index < 3; index++) {
            values[index] = -1;
            MPI_Irecv(&values[index], 1, MPI_INT, round % 2 ? from : MPI_ANY_SOURCE, 5, MPI_COMM_WORLD,
                      &requests[index]);
        }
        MPI_Cancel(&requests[1]);
        MPI_Wait(&requests[1], &status);
        MPI_Test_cancelled(&status, &cancelled);
        CHECK(cancelled);
        /* No rank sends before all have cancelled. */
        MPI_Barrier(MPI_COMM_WORLD);
        for (int index = 0; index < 2; index++) {
            sent = round * 2 + index;
            MPI_Isend(&sent, 1, MPI_INT, to, 5, MPI_COMM_WORLD, &send);
            MPI_Wait(&send, MPI_STATUS_IGNORE);
        }
        MPI_Wait(&requests[0], &status);
        MPI_Test_cancelled(&status, &cancelled);
        CHECK(!cancelled && status.MPI_SOURCE == from && values[0] == round * 2);
        MPI_Wait(&requests[2], MPI_STATUS_IGNORE);
        CHECK(values[1] == -1 && values[2] == round * 2 + 1);
        /* A cancel after the message has arrived does not cancel. */
        MPI_Irecv(&values[0], 1, MPI_INT, from, 6, MPI_COMM_WORLD, &requests[0]);
        MPI_Send(&round, 1, MPI_INT, to, 6, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Cancel(&requests[0]);
        MPI_Wait(&requests[0], &status);
        MPI_Test_cancelled(&status, &cancelled);
        if (cancelled) MPI_Recv(&values[0], 1, MPI_INT, from, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(values[0] == round);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
