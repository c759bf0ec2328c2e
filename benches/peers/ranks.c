/* Measures for MPI what the bench `ranks` measures. Rank 0 prints `name value` of the slowest rank.
 *
 *     mpirun -n RANKS ranks [times]
 *
 * Rank 0 also prints `pairs` when all pairs have exchanged a message, and `done` at the end. The job
 * exits a second later, so that its shared memory can be measured.
 */
#include <dirent.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    int rank, size, times = argc > 1 ? atoi(argv[1]) : 100;
    double took[5] = { 0 }, slowest[5];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double *all = malloc(times * sizeof *all), value = 1, sum;
    double start = MPI_Wtime();
    MPI_Barrier(MPI_COMM_WORLD);
    took[0] = (MPI_Wtime() - start) * 1e3;
    start = MPI_Wtime();
    for (int distance = 1; distance < size; distance++) {
        long sent = rank, received = -1;
        int to = (rank + distance) % size, from = (rank + size - distance) % size;
        MPI_Send(&sent, 8, MPI_BYTE, to, 1, MPI_COMM_WORLD);
        MPI_Recv(&received, 8, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (received != from)
            MPI_Abort(MPI_COMM_WORLD, 1);
    }
    took[1] = (MPI_Wtime() - start) * 1e3;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        puts("pairs");
        fflush(stdout);
    }
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < times; i++) {
            start = MPI_Wtime();
            if (kind == 0)
                MPI_Barrier(MPI_COMM_WORLD);
            else
                MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            all[i] = (MPI_Wtime() - start) * 1e6;
        }
        qsort(all, times, sizeof *all, compare_doubles);
        took[2 + kind] = all[times / 2];
    }
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        took[4]++;
    took[4] -= 2; /* . and .. */
    MPI_Reduce(took, slowest, 5, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("first_barrier %.3f\nall_pairs %.3f\nbarrier %.3f\nallreduce.8b %.3f\nfds %.0f\ndone\n",
               slowest[0], slowest[1], slowest[2], slowest[3], slowest[4]);
        fflush(stdout);
    }
    sleep(1);
    MPI_Finalize();
    return 0;
}
