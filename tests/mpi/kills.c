/* A rank is killed at a given moment, whatever it does. The others go on until a call fails.

       kills REPORT VICTIM MOMENT WORK PATIENCE     a rank, microseconds, a number, seconds

   Lines of the report: "killed NANOSECONDS", "told RANK NANOSECONDS ERROR", "untold RANK" after the
   patience, "ended RANK NANOSECONDS" if the library ends the process. A rank that was told exits, so
   that those that wait for it are told, too. */

#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a message; messages, and ranks. */
enum { LARGEST = 2 << 20, MANY = 64 };

static int report, victim, moment, patience, has_reported;
static char *one, *other;

static long long nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void wait_for(int microseconds) {
    struct timespec time = { microseconds / 1000000, microseconds % 1000000 * 1000L };
    nanosleep(&time, NULL);
}

/* The kernel may end the main thread in the middle of a copy, as if another process had sent the signal. */
static void *kill_later(void *unused) {
    wait_for(moment);
    dprintf(report, "killed %lld\n", nanoseconds());
    kill(getpid(), SIGKILL);
    return unused;
}

static void *lose_patience(void *unused) {
    wait_for(moment);
    sleep(patience);
    has_reported = 1;
    dprintf(report, "untold %d\n", rank);
    _exit(0);
    return unused;
}

static void say_end(void) {
    if (!has_reported) dprintf(report, "ended %d %lld\n", rank, nanoseconds());
}

/* Reports the first error of a call. */
static void told(int failed) {
    if (!failed) return;
    long long when = nanoseconds();
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(failed, text, &length);
    text[strcspn(text, "\n")] = 0;
    has_reported = 1;
    dprintf(report, "told %d %lld %s\n", rank, when, text);
    _exit(0);
}

/* MPICH reports an error to its launcher, which then ends the other ranks. From here on such reports go
   nowhere. The launcher sees no end of the connection, since a copy of it stays open. */
static void leave_launcher(void) {
    const char *connection = getenv("PMI_FD");
    if (!connection) return;
    int nowhere = open("/dev/null", O_RDWR);
    CHECK(dup(atoi(connection)) >= 0 && dup2(nowhere, atoi(connection)) >= 0);
}

static int size_of_round(int round) {
    static const int sizes[] = { 8, 1000, 20000, 300000, LARGEST };
    return sizes[round % 5];
}

static void exchanges(int round) {
    int size = size_of_round(round);
    for (int distance = 1; distance < ranks; distance++)
        told(MPI_Sendrecv(one, size, MPI_BYTE, (rank + distance) % ranks, 1, other, size, MPI_BYTE,
                          (rank + ranks - distance) % ranks, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
}

static void collectives(int round) {
    int size = size_of_round(round);
    told(MPI_Barrier(MPI_COMM_WORLD));
    told(MPI_Allreduce(one, other, size / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    told(MPI_Bcast(one, size, MPI_BYTE, round % ranks, MPI_COMM_WORLD));
    told(MPI_Alltoall(one, size / ranks, MPI_BYTE, other, size / ranks, MPI_BYTE, MPI_COMM_WORLD));
}

/* The others wait for the victim, which does nothing. */
static void waiting(int round) {
    (void)round;
    if (rank == victim) wait_for(1000);
    else told(MPI_Recv(other, 8, MPI_BYTE, victim, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
}

/* Waits for all requests, and reports the first that has failed. */
static void finish(int count, MPI_Request *requests) {
    MPI_Status states[2 * MANY];
    int failed = MPI_Waitall(count, requests, states);
    for (int i = 0; failed == MPI_ERR_IN_STATUS && i < count; i++)
        if (states[i].MPI_ERROR != MPI_ERR_PENDING) told(states[i].MPI_ERROR);
    told(failed);
}

static void all_at_once(int round) {
    MPI_Request requests[2 * MANY];
    int size = size_of_round(round) / ranks, count = 0;
    for (int peer = 0; peer < ranks; peer++) {
        if (peer == rank) continue;
        told(MPI_Irecv(other + peer * size, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[count++]));
        told(MPI_Isend(one, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[count++]));
    }
    finish(count, requests);
}

/* The others send much to the victim, which receives slowly. */
static void flood(int round) {
    MPI_Request requests[MANY];
    int size = round % 2 ? 500 : 40000;
    if (rank == victim) {
        told(MPI_Recv(other, LARGEST, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        return;
    }
    for (int i = 0; i < MANY; i++)
        told(MPI_Isend(one, size, MPI_BYTE, victim, i, MPI_COMM_WORLD, &requests[i]));
    finish(MANY, requests);
}

/* All write to and read from the memory of all. */
static void one_sided(int round) {
    static MPI_Win window = MPI_WIN_NULL;
    int size = size_of_round(round) / 2;
    if (window == MPI_WIN_NULL) {
        void *base;
        told(MPI_Win_allocate(LARGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window));
        MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
        told(MPI_Win_lock_all(0, window));
    }
    for (int peer = 0; peer < ranks; peer++) {
        told(MPI_Put(one, size, MPI_BYTE, peer, 0, size, MPI_BYTE, window));
        told(MPI_Get(other, size, MPI_BYTE, peer, LARGEST / 2, size, MPI_BYTE, window));
        told(MPI_Win_flush(peer, window));
    }
}

static void (*const works[])(int round) = { exchanges, collectives, waiting, all_at_once, flood, one_sided };

int main(int count, char **words) {
    pthread_t thread;
    begin(&count, &words);
    CHECK(count == 6 && ranks <= MANY);
    report = open(words[1], O_WRONLY | O_APPEND | O_CLOEXEC);
    CHECK(report >= 0);
    victim = atoi(words[2]);
    moment = atoi(words[3]);
    patience = atoi(words[5]);
    one = memory(LARGEST);
    other = memory(LARGEST);
    memset(one, 0, LARGEST);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    leave_launcher();
    atexit(say_end);
    CHECK(!pthread_create(&thread, NULL, rank == victim ? kill_later : lose_patience, NULL));
    for (int round = 0;; round++) works[atoi(words[4]) % (sizeof works / sizeof *works)](round);
}
