/* A number travels round all ranks, and each adds its own. README.md says how to run it over umf. */

#include <mpi.h>
#include <stdio.h>

int main(int count, char **words) {
    int rank, ranks, sum = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    if (rank == 0) MPI_Send(&sum, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
    MPI_Recv(&sum, 1, MPI_INT, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    sum += rank;
    if (rank != 0) MPI_Send(&sum, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
    else printf("the sum of %d ranks is %d\n", ranks, sum);
    MPI_Finalize();
    return 0;
}
