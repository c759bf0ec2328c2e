/* One-sided operations: Put, Get, Accumulate, Get_accumulate, Fetch_and_op and Compare_and_swap, with
   fences, locks, and post-start-complete-wait. */

#include "check.h"

enum { LENGTH = 20000 };
static long *window_memory;
static MPI_Win window;

static void clear(void) {
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    memset(window_memory, 0, LENGTH * sizeof(long));
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Each rank writes a part of its neighbour, and reads it back from there. */
static void fences(int next, int previous) {
    static long out[LENGTH], in[LENGTH];
    static const int counts[] = {1, 7, 600, LENGTH};
    for (int index = 0; index < 4; index++) {
        int count = counts[index];
        for (int at = 0; at < count; at++) out[at] = rank * 1000000L + at + index;
        MPI_Win_fence(0, window);
        MPI_Put(out, count, MPI_LONG, next, 0, count, MPI_LONG, window);
        MPI_Win_fence(0, window);
        for (int at = 0; at < count; at++) CHECK(window_memory[at] == previous * 1000000L + at + index);
        memset(in, 0, sizeof in);
        MPI_Win_fence(0, window);
        MPI_Get(in, count, MPI_LONG, next, 0, count, MPI_LONG, window);
        MPI_Win_fence(0, window);
        CHECK(!memcmp(in, out, (size_t)count * sizeof(long)));
    }
    clear();
    /* All ranks add to rank 0: single numbers, and all of the window. */
    for (int at = 0; at < LENGTH; at++) out[at] = at + rank;
    MPI_Win_fence(0, window);
    MPI_Accumulate(out, LENGTH, MPI_LONG, 0, 0, LENGTH, MPI_LONG, MPI_SUM, window);
    MPI_Win_fence(0, window);
    if (!rank)
        for (int at = 0; at < LENGTH; at++)
            CHECK(window_memory[at] == (long)ranks * at + ranks * (ranks - 1) / 2);
    clear();
}

static void locks(void) {
    long one = 1, before, sum = 0, most = rank, old, all;
    for (int turn = 0; turn < 100; turn++) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 0, MPI_SUM, window);
        MPI_Win_unlock(0, window);
        CHECK(before >= turn && before < 100L * ranks);
        sum += before;
        /* A number that is read and written under a lock. */
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Get(&old, 1, MPI_LONG, 0, 1, 1, MPI_LONG, window);
        MPI_Win_flush(0, window);
        old++;
        MPI_Put(&old, 1, MPI_LONG, 0, 1, 1, MPI_LONG, window);
        MPI_Win_unlock(0, window);
    }
    /* Each number below the sum was fetched once. */
    MPI_Allreduce(&sum, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all == 100L * ranks * (100L * ranks - 1) / 2);
    MPI_Win_lock_all(0, window);
    MPI_Fetch_and_op(NULL, &before, MPI_LONG, 0, 1, MPI_NO_OP, window);
    MPI_Win_flush(0, window);
    CHECK(before == 100L * ranks);
    MPI_Accumulate(&most, 1, MPI_LONG, 0, 2, 1, MPI_LONG, MPI_MAX, window);
    MPI_Win_flush(0, window);
    /* A counter by compare and swap. */
    long seen = 0, swapped = 0;
    for (int turn = 0; turn < 50;) {
        long wanted = seen + 1;
        MPI_Compare_and_swap(&wanted, &seen, &swapped, MPI_LONG, 0, 3, window);
        MPI_Win_flush(0, window);
        if (swapped == seen) turn++, seen = wanted;
        else seen = swapped;
    }
    /* Old values of several numbers, and a replacement of them. */
    long ones[5] = {1, 1, 1, 1, 1}, olds[5];
    MPI_Get_accumulate(ones, 5, MPI_LONG, olds, 5, MPI_LONG, 0, 10, 5, MPI_LONG, MPI_SUM, window);
    MPI_Win_flush(0, window);
    for (int at = 0; at < 5; at++) CHECK(olds[at] >= 0 && olds[at] < ranks);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    long last[15];
    MPI_Get(last, 15, MPI_LONG, 0, 0, 15, MPI_LONG, window);
    MPI_Win_unlock(0, window);
    CHECK(last[0] == 100L * ranks && last[2] == ranks - 1 && last[3] == 50L * ranks);
    for (int at = 10; at < 15; at++) CHECK(last[at] == ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    clear();
}

static void posts(int next, int previous) {
    MPI_Group world, to, from;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &next, &to);
    MPI_Group_incl(world, 1, &previous, &from);
    for (long turn = 0; turn < 50; turn++) {
        long value = rank * 1000L + turn, old = 0;
        MPI_Win_post(from, 0, window);
        MPI_Win_start(to, 0, window);
        MPI_Put(&value, 1, MPI_LONG, next, turn, 1, MPI_LONG, window);
        if (turn) MPI_Get(&old, 1, MPI_LONG, next, turn - 1, 1, MPI_LONG, window);
        MPI_Win_complete(window);
        MPI_Win_wait(window);
        CHECK(!turn || old == value - 1);
        CHECK(window_memory[turn] == previous * 1000L + turn);
    }
    MPI_Group_free(&world);
    MPI_Group_free(&to);
    MPI_Group_free(&from);
}

int main(int count, char **words) {
    begin(&count, &words);
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    window_memory = memory(LENGTH * sizeof(long));
    MPI_Win_create(window_memory, LENGTH * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    fences(next, previous);
    locks();
    posts(next, previous);
    MPI_Win_free(&window);
    /* A window whose memory the library allocates. */
    MPI_Win_allocate(LENGTH * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window_memory, &window);
    clear();
    fences(next, previous);
    locks();
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
