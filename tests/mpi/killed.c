/* The last rank kills itself. The calls of the others return an error or end the job. */

#include "check.h"
#include <signal.h>
#include <unistd.h>

int main(int count, char **words) {
    begin(&count, &words);
    int value = rank, failed;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int round = 0; round < 10; round++) MPI_Barrier(MPI_COMM_WORLD);
    if (rank == ranks - 1) kill(getpid(), SIGKILL);
    double start = MPI_Wtime();
    failed = MPI_Recv(&value, 1, MPI_INT, ranks - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    char text[MPI_MAX_ERROR_STRING] = "success";
    int length;
    if (failed) MPI_Error_string(failed, text, &length);
    printf("rank %d: the receive from the killed rank ended after %.0f ms: %s\n", rank,
           (MPI_Wtime() - start) * 1e3, text);
    fflush(stdout);
    CHECK(failed);
    MPI_Abort(MPI_COMM_WORLD, 4);
    return 4;
}
