/* Collective operations against results that follow from the ranks and positions alone, and against a
   reduction by messages between pairs. */

#include "check.h"

static int *in, *out;

/* The number that rank `from` has for rank `to` at a position. */
static int number(int from, int to, int at) { return (int)word_at((unsigned)(from * 100 + to), (size_t)at) >> 8; }

static void give(int *numbers, int from, int to, int length) {
    for (int at = 0; at < length; at++) numbers[at] = number(from, to, at);
}

static void check(const int *numbers, int from, int to, int length) {
    for (int at = 0; at < length; at++) CHECK(numbers[at] == number(from, to, at));
}

/* The sums over all ranks up to the last one, computed by messages along the ranks. */
static void reference(const int *mine, long *sums, int length, int inclusive) {
    for (int at = 0; at < length; at++) sums[at] = 0;
    if (rank) MPI_Recv(sums, length, MPI_LONG, rank - 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    long *next = memory((size_t)length * sizeof(long));
    for (int at = 0; at < length; at++) next[at] = sums[at] + mine[at];
    if (rank + 1 < ranks) MPI_Send(next, length, MPI_LONG, rank + 1, 9, MPI_COMM_WORLD);
    if (inclusive) memcpy(sums, next, (size_t)length * sizeof(long));
    free(next);
}

static void moves(int length) {
    for (int root = 0; root < ranks; root++) {
        if (rank == root) give(in, root, 0, length);
        else memset(in, 0, (size_t)length * sizeof(int));
        MPI_Bcast(in, length, MPI_INT, root, MPI_COMM_WORLD);
        check(in, root, 0, length);
        give(in, rank, 1, length);
        MPI_Gather(in, length, MPI_INT, out, length, MPI_INT, root, MPI_COMM_WORLD);
        for (int from = 0; rank == root && from < ranks; from++) check(out + from * length, from, 1, length);
        for (int to = 0; to < ranks; to++) give(out + to * length, root, to, length);
        MPI_Scatter(out, length, MPI_INT, in, length, MPI_INT, root, MPI_COMM_WORLD);
        check(in, root, rank, length);
    }
    give(in, rank, 2, length);
    MPI_Allgather(in, length, MPI_INT, out, length, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++) check(out + from * length, from, 2, length);
    for (int to = 0; to < ranks; to++) give(in + to * length, rank, to, length);
    MPI_Alltoall(in, length, MPI_INT, out, length, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++) check(out + from * length, from, rank, length);
    /* The same without blocking, two at a time. */
    MPI_Request requests[2];
    memset(out, 0, (size_t)(ranks * length) * sizeof(int));
    int *all = memory((size_t)(ranks * length) * sizeof(int));
    MPI_Ialltoall(in, length, MPI_INT, out, length, MPI_INT, MPI_COMM_WORLD, &requests[0]);
    MPI_Iallgather(in, length, MPI_INT, all, length, MPI_INT, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    for (int from = 0; from < ranks; from++) {
        check(out + from * length, from, rank, length);
        check(all + from * length, from, 0, length);
    }
    free(all);
}

/* Rank r has r + 1 pieces of the length for each other, at places in the reverse order. */
static void vectors(int length) {
    int *counts = memory((size_t)ranks * 4 * sizeof(int)), *places = counts + ranks;
    int *own = places + ranks, *own_places = own + ranks, place = 0;
    for (int from = ranks - 1; from >= 0; from--)
        counts[from] = (from + 1) * length, places[from] = place, place += counts[from];
    give(in, rank, 3, counts[rank]);
    MPI_Allgatherv(in, counts[rank], MPI_INT, out, counts, places, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++) check(out + places[from], from, 3, counts[from]);
    MPI_Gatherv(in, counts[rank], MPI_INT, out, counts, places, MPI_INT, 0, MPI_COMM_WORLD);
    memset(in, 0, (size_t)counts[rank] * sizeof(int));
    MPI_Scatterv(out, counts, places, MPI_INT, in, counts[rank], MPI_INT, 0, MPI_COMM_WORLD);
    check(in, rank, 3, counts[rank]);
    for (int to = 0; to < ranks; to++) {
        own[to] = counts[rank], own_places[to] = to * counts[rank];
        give(in + own_places[to], rank, to, own[to]);
    }
    MPI_Alltoallv(in, own, own_places, MPI_INT, out, counts, places, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++) check(out + places[from], from, rank, counts[from]);
    free(counts);
}

static void reductions(int length) {
    size_t bytes = (size_t)(ranks * length) * sizeof(long);
    long *mine = memory(bytes), *sums = memory(bytes), *wanted = memory(bytes), *all = memory(bytes);
    give(in, rank, 4, ranks * length);
    for (int at = 0; at < ranks * length; at++) mine[at] = in[at];
    reference(in, wanted, length, 1);
    MPI_Scan(mine, sums, length, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK(!memcmp(sums, wanted, (size_t)length * sizeof(long)));
    reference(in, wanted, length, 0);
    MPI_Exscan(mine, sums, length, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK(!rank || !memcmp(sums, wanted, (size_t)length * sizeof(long)));
    for (int at = 0; at < ranks * length; at++) {
        wanted[at] = 0;
        for (int from = 0; from < ranks; from++) wanted[at] += number(from, 4, at);
    }
    MPI_Allreduce(mine, all, ranks * length, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK(!memcmp(all, wanted, bytes));
    for (int root = 0; root < ranks; root++) {
        memset(all, 0, bytes);
        MPI_Reduce(mine, all, ranks * length, MPI_LONG, MPI_SUM, root, MPI_COMM_WORLD);
        CHECK(rank != root || !memcmp(all, wanted, bytes));
    }
    MPI_Reduce_scatter_block(mine, all, length, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK(!memcmp(all, wanted + rank * length, (size_t)length * sizeof(long)));
    MPI_Allreduce(mine, all, length, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(mine, sums, length, MPI_LONG, MPI_BXOR, MPI_COMM_WORLD);
    for (int at = 0; at < length; at++) {
        long most = number(0, 4, at), mixed = 0;
        for (int from = 0; from < ranks; from++) {
            if (number(from, 4, at) > most) most = number(from, 4, at);
            mixed ^= number(from, 4, at);
        }
        CHECK(all[at] == most && sums[at] == mixed);
    }
    free(mine), free(sums), free(wanted), free(all);
}

/* Parts of the ranks, and a copy of all, at the same time. */
static void communicators(void) {
    MPI_Comm half, copy;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    for (int turn = 0; turn < 100; turn++) {
        int of_half, of_all, wanted = 0, value = rank + turn;
        MPI_Request requests[2];
        MPI_Iallreduce(&value, &of_all, 1, MPI_INT, MPI_SUM, copy, &requests[0]);
        MPI_Iallreduce(&value, &of_half, 1, MPI_INT, MPI_SUM, half, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        for (int other = rank % 2; other < ranks; other += 2) wanted += other + turn;
        CHECK(of_half == wanted && of_all == ranks * (ranks - 1) / 2 + ranks * turn);
    }
    MPI_Comm_free(&half);
    MPI_Comm_free(&copy);
}

int main(int count, char **words) {
    begin(&count, &words);
    static const int lengths[] = {1, 13, 1500, 20000};
    size_t most = (size_t)20000 * (size_t)(ranks * (ranks + 1)) * sizeof(int);
    in = memory(most), out = memory(most);
    for (int index = 0; index < 4; index++) {
        moves(lengths[index]);
        vectors(lengths[index]);
        reductions(lengths[index]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    communicators();
    MPI_Finalize();
    return 0;
}
