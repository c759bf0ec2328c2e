/* Measures messages between two processes, over the library of the program that includes this file:
 * it defines the three functions below. Rank 0 prints `name value`, in microseconds or GB/s, the
 * median of short batches.
 *
 * The sender writes the data before each message, and the receiver reads and checks it. So the data
 * is in the cache of the processor that wrote it, and a copy that leaves it in another cache than the
 * receiver's pays for that.
 */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The rank, 0 or 1. */
static int rank;

/* Announces a receive. A library that cannot use that does nothing. */
static void expect(char *bytes, size_t size);
/* Completes the receive that was announced, or one that was not. */
static void receive(char *bytes, size_t size);
/* Sends. At the end the memory can be written again. */
static void transmit(char *bytes, size_t size);

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    exit(1);
}

/* Returns seconds. */
static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Pins this process to the processor of its rank, from a list such as "0,2". */
static void pin(const char *processors)
{
    cpu_set_t set;
    const char *second = strchr(processors, ',');
    CPU_ZERO(&set);
    CPU_SET(atoi(rank && second ? second + 1 : processors), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        fail("cannot be pinned to its processor");
}

/* Returns rank 0's number on both ranks. */
static double agree(double number)
{
    char bytes[sizeof number];
    memcpy(bytes, &number, sizeof number);
    if (rank == 0) {
        transmit(bytes, sizeof bytes);
        receive(bytes, sizeof bytes);
    } else {
        receive(bytes, sizeof bytes);
        memcpy(&number, bytes, sizeof number);
        transmit(bytes, sizeof bytes);
    }
    return number;
}

/* Returns rank 1's number on rank 0. */
static double theirs(double number)
{
    char bytes[sizeof number];
    memcpy(bytes, &number, sizeof number);
    if (rank == 1) {
        transmit(bytes, sizeof bytes);
    } else {
        receive(bytes, sizeof bytes);
        memcpy(&number, bytes, sizeof number);
    }
    return number;
}

static void write_all(char *bytes, size_t size, int round)
{
    memset(bytes, round & 0x7f, size);
}

static void read_all(const char *bytes, size_t size, int round)
{
    uint64_t sum = 0, word, first;
    memset(&first, round & 0x7f, sizeof first);
    for (size_t at = 0; at < size; at += sizeof word) {
        memcpy(&word, bytes + at, sizeof word);
        sum += word;
    }
    if (sum != first * (size / sizeof word))
        fail("a message has other contents than were sent");
}

/* The seconds of a message: with writing and reading, and without. */
struct times {
    double whole, calls;
};

/* Half round trips. */
static struct times round_trips(char *one, char *other, size_t size, int count)
{
    double touching = 0, before = 0;
    /* At small sizes the clock would take longer than writing and reading. */
    int timed = size >= 65536;
    agree(0);
    if (rank == 1)
        expect(other, size);
    double start = now();
    for (int round = 0; round < count; round++) {
        if (rank == 1) {
            receive(other, size);
            before = timed ? now() : 0;
            read_all(other, size, round);
        } else {
            before = timed ? now() : 0;
        }
        write_all(one, size, round);
        if (timed)
            touching += now() - before;
        if (rank == 0 || round + 1 < count)
            expect(other, size);
        transmit(one, size);
        if (rank == 0) {
            receive(other, size);
            before = timed ? now() : 0;
            read_all(other, size, round);
            if (timed)
                touching += now() - before;
        }
    }
    double all = now() - start;
    touching += theirs(touching);
    return (struct times){ all / (2.0 * count), (all - touching) / (2.0 * count) };
}

/* Messages one after the other. The time of writing is not counted, and the receiver does not read. */
static struct times stream(char *one, char *other, size_t size, int count)
{
    double all = 0, start;
    agree(0);
    for (int round = 0; round < count; round++) {
        if (rank == 0) {
            write_all(one, size, round);
            start = now();
            transmit(one, size);
            all += now() - start;
        } else {
            receive(other, size);
        }
    }
    start = now();
    theirs(0);
    all += now() - start;
    return (struct times){ all / count, all / count };
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

typedef struct times measured(char *one, char *other, size_t size, int count);

/* Measures batches for some seconds. Returns the medians. */
static struct times row(measured *measure, size_t size, double seconds)
{
    enum { MAX_BATCHES = 4000 };
    static double whole[MAX_BATCHES], calls[MAX_BATCHES];
    char *one = malloc(size), *other = malloc(size);
    int number = 0;
    if (!one || !other)
        fail("no memory");
    memset(one, 1, size);
    memset(other, 2, size);
    double first = measure(one, other, size, 8).whole, count = 4;
    if (first > 0 && 2e-4 / first > count)
        count = 2e-4 / first;
    count = agree(count > 2000 ? 2000 : count);
    double end = now() + seconds;
    do {
        struct times times = measure(one, other, size, (int)count);
        whole[number] = times.whole;
        calls[number++] = times.calls;
    } while (agree(number < 3 || (now() < end && number < MAX_BATCHES)) != 0);
    free(one);
    free(other);
    return (struct times){ median(whole, number), median(calls, number) };
}

/* All rows, each measured for some seconds. */
static void measure_all(double seconds)
{
    static const struct {
        const char *name;
        size_t size;
        int is_streamed;
    } sizes[] = {
        { "8b", 8, 0 }, { "4k", 4 << 10, 0 }, { "64k", 64 << 10, 0 }, { "1m", 1 << 20, 1 }, { "16m", 16 << 20, 1 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct times half = row(round_trips, sizes[i].size, seconds);
        if (rank == 0)
            printf("halfrtt.%s %.3f\n", sizes[i].name, half.whole * 1e6);
        if (rank == 0 && half.calls < half.whole)
            printf("halfrtt.%s.calls %.3f\n", sizes[i].name, half.calls * 1e6);
        if (!sizes[i].is_streamed)
            continue;
        struct times one_way = row(stream, sizes[i].size, seconds);
        if (rank == 0)
            printf("stream.%s %.3f\n", sizes[i].name, sizes[i].size / one_way.whole / 1e9);
    }
}
