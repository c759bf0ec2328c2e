/* The last rank kills itself. A receive from it ends with an error on the others. They append what
   happened to the file of the first argument: launchers lose output of such jobs. */

#include "check.h"
#include <signal.h>
#include <unistd.h>

int main(int count, char **words) {
    begin(&count, &words);
    int value = rank, failed;
    CHECK(count == 2);
    FILE *report = fopen(words[1], "a");
    CHECK(report);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int round = 0; round < 10; round++) MPI_Barrier(MPI_COMM_WORLD);
    if (rank == ranks - 1) kill(getpid(), SIGKILL);
    double start = MPI_Wtime();
    failed = MPI_Recv(&value, 1, MPI_INT, ranks - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    char text[MPI_MAX_ERROR_STRING] = "success";
    int length;
    if (failed) MPI_Error_string(failed, text, &length);
    text[strcspn(text, "\n")] = 0;
    fprintf(report, "rank %d: the receive from the killed rank ended after %.0f ms: %s\n", rank,
            (MPI_Wtime() - start) * 1e3, text);
    fclose(report);
    _exit(0);
}
