/* churn ROW OPERATIONS THREADS: nanoseconds of the threads' processor time for an allocation and its free. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LIVE = 1000, RING = 1024 };

static void *(*volatile take)(size_t) = malloc;
static void *(*volatile take_zeroed)(size_t, size_t) = calloc;
static void *(*volatile change)(void *, size_t) = realloc;
static void (*volatile give)(void *) = free;

static const char *row;
static long operations;
static _Atomic(void *) ring[RING];

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static size_t size_in(uint64_t *state, size_t low, size_t high) { return low + next(state) % (high - low); }

/* One of the live blocks is freed, another comes in its place; the first byte of each is written. */
static void churn(uint64_t *state, size_t low, size_t high) {
    char **live = calloc(LIVE, sizeof *live);
    for (long n = 0; n < operations; ++n) {
        char **place = &live[next(state) % LIVE];
        give(*place);
        *place = take(size_in(state, low, high));
        **place = 1;
    }
    for (int n = 0; n < LIVE; ++n) {
        give(live[n]);
    }
    free(live);
}

static void pass(uint64_t *state, int takes) {
    for (long n = 0; n < operations;) {
        _Atomic(void *) *place = &ring[n % RING];
        if (takes && !atomic_load_explicit(place, memory_order_acquire)) {
            atomic_store_explicit(place, take(size_in(state, 8, 1024)), memory_order_release);
            n++;
        } else if (!takes) {
            void *block = atomic_exchange_explicit(place, NULL, memory_order_acquire);
            if (block) {
                give(block);
                n++;
            }
        }
    }
}

static void *work(void *number) {
    uint64_t state = (uintptr_t)number * 0x9E3779B97F4A7C15u + 1;
    struct timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    if (!strcmp(row, "pair")) {
        for (long n = 0; n < operations; ++n) {
            give(take(64));
        }
    } else if (!strcmp(row, "small")) {
        churn(&state, 8, 1024);
    } else if (!strcmp(row, "medium")) {
        churn(&state, 1024, 65536);
    } else if (!strcmp(row, "large")) {
        churn(&state, 65536, 1 << 20);
    } else if (!strcmp(row, "handed")) {
        pass(&state, (uintptr_t)number % 2 == 0);
    } else if (!strcmp(row, "zeroed")) {
        for (long n = 0; n < operations; ++n) {
            give(take_zeroed(1, size_in(&state, 8, 4096)));
        }
    } else if (!strcmp(row, "grown")) {
        /* By a tenth or so at a time, from 16 bytes on. */
        for (long n = 0; n < operations;) {
            void *block = NULL;
            for (size_t size = 16; size < 1 << 20 && n < operations; size += size / 10 + 1, ++n) {
                block = change(block, size);
            }
            give(block);
        }
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    double *took = malloc(sizeof *took);
    *took = (end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    return took;
}

int main(int count, char **arguments) {
    if (count < 4) {
        return 2;
    }
    row = arguments[1];
    operations = atol(arguments[2]);
    int threads = atoi(arguments[3]);
    pthread_t all[64];
    double sum = 0;
    for (uintptr_t number = 1; number < (uintptr_t)threads; ++number) {
        pthread_create(&all[number], NULL, work, (void *)number);
    }
    double *took = work(NULL);
    sum += *took;
    for (int number = 1; number < threads; ++number) {
        pthread_join(all[number], (void **)&took);
        sum += *took;
    }
    /* Of handed blocks one thread takes what another gives. */
    printf("%.2f\n", sum / (double)operations / (strcmp(row, "handed") ? threads : 1));
    return 0;
}
