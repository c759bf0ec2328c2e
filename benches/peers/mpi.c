/* Measures between two ranks of MPI what the bench `link` measures between two processes.
 * Prints `name value` with the names of the bench, in microseconds or GB/s. As in the bench, data is
 * written before each message of 64 KiB and more, and the time of writing is subtracted.
 *
 *     mpirun -n 2 mpi [seconds for each row]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank;
static double seconds = 0.3;

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Returns the seconds of half a round trip. `fresh`: the data is written before each message. */
static double round_trips(char *one, char *other, int size, int count, int fresh)
{
    double all = 0, writing = 0, peer_writing = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        double before = MPI_Wtime();
        if (rank == 0) {
            if (fresh)
                memset(one, i, size);
            double start = MPI_Wtime();
            MPI_Send(one, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(other, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            all += MPI_Wtime() - start;
        } else {
            MPI_Recv(other, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            before = MPI_Wtime();
            if (fresh)
                memset(one, i, size);
            writing += MPI_Wtime() - before;
            MPI_Send(one, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
    }
    MPI_Allreduce(&writing, &peer_writing, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return (all - (fresh ? peer_writing : 0)) / (2.0 * count);
}

/* Sends messages one after the other. Returns the seconds of one. */
static double stream(char *one, char *other, int size, int count)
{
    double all = 0;
    char done = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        if (rank == 0) {
            memset(one, i, size);
            double start = MPI_Wtime();
            MPI_Send(one, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            all += MPI_Wtime() - start;
        } else {
            MPI_Recv(other, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    double start = MPI_Wtime();
    if (rank == 0) {
        MPI_Recv(&done, 1, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        all += MPI_Wtime() - start;
    } else {
        MPI_Send(&done, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
    return all / count;
}

/* Sums floats over both ranks. Returns the seconds of one sum. */
static double sums(float *one, float *other, int count, int times, int in_place)
{
    double all = 0;
    for (int i = 0; i < times; i++) {
        memset(one, 0x3c, count * sizeof *one);
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        if (in_place)
            MPI_Allreduce(MPI_IN_PLACE, one, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else
            MPI_Allreduce(one, other, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        all += MPI_Wtime() - start;
    }
    return all / times;
}

enum kind { LATENCY, HALF, STREAM, SUM, SUM_IN_PLACE };

static double once(enum kind kind, char *one, char *other, int size, int count)
{
    switch (kind) {
    case LATENCY: return round_trips(one, other, size, count, 0);
    case HALF: return round_trips(one, other, size, count, 1);
    case STREAM: return stream(one, other, size, count);
    default: return sums((float *)one, (float *)other, size / 4, count, kind == SUM_IN_PLACE);
    }
}

/* Measures short batches. Returns the median, in seconds. */
static double row(enum kind kind, int size)
{
    enum { MAX_BATCHES = 4000 };
    static double values[MAX_BATCHES];
    char *one = malloc(size), *other = malloc(size);
    memset(one, 1, size);
    memset(other, 2, size);
    double first = once(kind, one, other, size, 8);
    int count = first > 0 ? (int)(2e-4 / first) : 2000, number = 0, go = 1;
    if (count < 4)
        count = 4;
    if (count > 2000)
        count = 2000;
    MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD);
    double end = MPI_Wtime() + seconds;
    while (go) {
        values[number++] = once(kind, one, other, size, count);
        go = number < 3 || (MPI_Wtime() < end && number < MAX_BATCHES);
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    qsort(values, number, sizeof *values, compare_doubles);
    free(one);
    free(other);
    return values[number / 2];
}

int main(int argc, char **argv)
{
    static const struct { const char *name; int size; } sizes[] = {
        { "64k", 64 << 10 }, { "1m", 1 << 20 }, { "16m", 16 << 20 },
    };
    int ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc > 1)
        seconds = atof(argv[1]);
    if (ranks != 2) {
        fprintf(stderr, "%d ranks: run it with mpirun -n 2\n", ranks);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    double latency = row(LATENCY, 8);
    if (rank == 0)
        printf("link.latency.8b %.3f\n", latency * 1e6);
    for (int i = 0; i < 3; i++) {
        double half = row(HALF, sizes[i].size), one = row(STREAM, sizes[i].size);
        if (rank == 0)
            printf("link.halfrtt.%s %.2f\nlink.bandwidth.%s %.2f\n", sizes[i].name, half * 1e6, sizes[i].name,
                   sizes[i].size / one / 1e9);
    }
    for (int i = 1; i < 3; i++) {
        double copied = row(SUM, sizes[i].size), in_place = row(SUM_IN_PLACE, sizes[i].size);
        /* The faster of both variants. */
        if (rank == 0)
            printf("link.allreduce.%s %.2f\n", sizes[i].name, (copied < in_place ? copied : in_place) * 1e6);
    }
    MPI_Finalize();
    return 0;
}
