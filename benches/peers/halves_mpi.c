/* Measures messages between two ranks of MPI (halves.h).
 *
 *     mpirun -n 2 halves_mpi PROCESSORS SECONDS      such as 0,1 and 0.3 for each row
 */
#define _GNU_SOURCE
#include "halves.h"
#include <mpi.h>

static void expect(char *bytes, size_t size)
{
    (void)bytes, (void)size;
}

static void receive(char *bytes, size_t size)
{
    MPI_Recv(bytes, size, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void transmit(char *bytes, size_t size)
{
    MPI_Send(bytes, size, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    const char *open_mpi = getenv("OMPI_COMM_WORLD_RANK"), *mpich = getenv("PMI_RANK");
    int expected, ranks;
    if (argc != 3 || (!open_mpi && !mpich))
        fail("usage: mpirun -n 2 halves_mpi PROCESSORS SECONDS");
    /* Before MPI_Init, as launchers pin. */
    rank = expected = atoi(open_mpi ? open_mpi : mpich);
    pin(argv[1]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2 || rank != expected)
        fail("the job does not have 2 ranks in the launcher's order");
    measure_all(atof(argv[2]));
    MPI_Finalize();
    return 0;
}
