/* Threads allocate, reallocate and free each other's blocks, and fork meanwhile. Each block begins with its size and
   the byte that it is filled with. */

#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 6, SLOTS = 4000, PLACES = 600 };

typedef struct {
    size_t size;
    unsigned char byte;
} block;

/* Blocks that any thread may take and free. */
static _Atomic(block *) slots[SLOTS];
static atomic_int wrong;
static long rounds;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static block *make(uint64_t *state) {
    static const size_t limits[] = {40, 40, 100, 300, 300, 2000, 2000, 20000, 200000, 1 << 21};
    uint64_t chance = next(state);
    size_t limit = limits[chance % 10];
    if (chance % 20000 == 0) {
        limit = 12 << 20;
    }
    size_t size = sizeof(block) + next(state) % limit;
    block *made = NULL;
    switch (next(state) % 8) {
    case 0:
        made = calloc(1, size);
        for (size_t place = 0; made && place < size; place += size / 8 + 1) {
            wrong += ((unsigned char *)made)[place] != 0;
        }
        break;
    case 1: {
        size_t align = 16u << next(state) % 9;
        if (posix_memalign((void **)&made, align, size) || ((uintptr_t)made & (align - 1))) {
            wrong++;
            return NULL;
        }
        break;
    }
    default:
        made = malloc(size);
    }
    if (!made) {
        wrong++;
        return NULL;
    }
    made->size = size;
    made->byte = (unsigned char)next(state);
    memset(made + 1, made->byte, size - sizeof(block));
    return made;
}

static void look(const block *seen) {
    const unsigned char *bytes = (const unsigned char *)(seen + 1);
    size_t size = seen->size - sizeof(block);
    wrong += malloc_usable_size((void *)seen) < seen->size;
    if (size) {
        wrong += bytes[0] != seen->byte || bytes[size - 1] != seen->byte || bytes[size / 2] != seen->byte;
    }
}

static block *resize(block *old, uint64_t *state) {
    size_t had = old->size, size = sizeof(block) + next(state) % (had * 2);
    block *new = realloc(old, size);
    if (!new) {
        wrong++;
        return old;
    }
    new->size = size < had ? size : had;
    look(new);
    new->size = size;
    memset(new + 1, new->byte, size - sizeof(block));
    return new;
}

static void work(uint64_t *state, long rounds) {
    block *own[PLACES] = {NULL};
    for (long round = 0; round < rounds; ++round) {
        uint64_t chance = next(state);
        block **place = &own[chance % PLACES];
        if (*place) {
            look(*place);
            if (chance >> 32 & 1) {
                *place = resize(*place, state);
            } else if (chance >> 33 & 1) {
                *place = atomic_exchange(&slots[next(state) % SLOTS], *place);
            } else {
                free(*place);
                *place = NULL;
            }
        } else {
            *place = make(state);
        }
    }
    for (int place = 0; place < PLACES; ++place) {
        if (own[place]) {
            look(own[place]);
        }
        free(own[place]);
    }
}

static void *thread(void *seed) {
    uint64_t state = (uintptr_t)seed * 0x9E3779B97F4A7C15u + 1;
    work(&state, rounds);
    return NULL;
}

static void *short_lived(void *seed) {
    uint64_t state = (uintptr_t)seed * 0xD1B54A32D192ED03u + 1;
    work(&state, 300);
    return NULL;
}

int main(int count, char **arguments) {
    rounds = count > 1 ? atol(arguments[1]) : 20000;
    int forks = count > 2 ? atoi(arguments[2]) : 30;
    pthread_t all[THREADS];
    for (uintptr_t number = 0; number < THREADS; ++number) {
        pthread_create(&all[number], NULL, thread, (void *)(number + 1));
    }
    int failed = 0;
    uint64_t state = 88172645463325252u;
    for (int number = 0; number < forks; ++number) {
        pthread_t one;
        pthread_create(&one, NULL, short_lived, (void *)(uintptr_t)(number + 100));
        pid_t child = fork();
        if (child == 0) {
            /* Kills a child that hangs. */
            alarm(60);
            wrong = 0;
            work(&state, 3000);
            pthread_t two;
            if (pthread_create(&two, NULL, short_lived, (void *)7) == 0) {
                pthread_join(two, NULL);
            }
            exit(wrong != 0);
        }
        work(&state, 300);
        int status = -1;
        if (waitpid(child, &status, 0) != child || status != 0) {
            printf("child %d: status %x\n", number, status);
            failed++;
        }
        pthread_join(one, NULL);
    }
    for (int number = 0; number < THREADS; ++number) {
        pthread_join(all[number], NULL);
    }
    for (int place = 0; place < SLOTS; ++place) {
        block *left = slots[place];
        if (left) {
            look(left);
        }
        free(left);
    }
    printf("%d wrong, %d children failed\n", wrong, failed);
    return wrong || failed;
}
