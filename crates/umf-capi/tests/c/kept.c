/* What disjoint pools keep of freed memory, and what they do when a program's provider has no more. The
 * provider counts the bytes that it has handed out, and may have a limit, as a device has. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <umf.h>
#include <umf/experimental/ctl.h>
#include <umf/pools/pool_disjoint.h>

#define P(x) printf("%s = %ld\n", #x, (long)(x))
#define BETTER(x) printf("better: %s = %ld\n", #x, (long)(x))
#define CHECK(x) do { umf_result_t r_ = (x); if (r_) { printf("%s failed: %d\n", #x, r_); exit(1); } } while (0)

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static _Atomic size_t have;
static size_t limit = SIZE_MAX;
static umf_result_t answer;

static size_t pages(size_t size) { return (size + 4095) & ~(size_t)4095; }

static umf_result_t p_initialize(const void *params, void **state) {
    (void)params;
    *state = &have;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_finalize(void *state) {
    (void)state;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_alloc(void *state, size_t size, size_t align, void **memory) {
    (void)state;
    size = pages(size);
    align = align < 4096 ? 4096 : align;
    if (atomic_fetch_add(&have, size) + size > limit) {
        atomic_fetch_sub(&have, size);
        return answer;
    }
    char *start = mmap(NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        atomic_fetch_sub(&have, size);
        return UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    char *aligned = (char *)(((uintptr_t)start + align - 1) & ~(uintptr_t)(align - 1));
    if (aligned > start) {
        munmap(start, aligned - start);
    }
    munmap(aligned + size, start + align - aligned);
    *memory = aligned;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_free(void *state, void *memory, size_t size) {
    (void)state;
    munmap(memory, pages(size));
    atomic_fetch_sub(&have, pages(size));
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_error(void *state, const char **message, int32_t *error) {
    (void)state;
    *message = "the device has no more memory";
    *error = 77;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_recommended(void *state, size_t size, size_t *page) {
    (void)state, (void)size;
    *page = 64 * KIB;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_min(void *state, const void *memory, size_t *page) {
    (void)state, (void)memory;
    *page = 4096;
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_name(void *state, const char **name) {
    (void)state;
    *name = "device";
    return UMF_RESULT_SUCCESS;
}
static umf_result_t p_line(void *state, size_t *size) {
    (void)state;
    *size = 64;
    return UMF_RESULT_SUCCESS;
}

static const umf_memory_provider_ops_t device = {
    .version = UMF_PROVIDER_OPS_VERSION_CURRENT,
    .initialize = p_initialize,
    .finalize = p_finalize,
    .alloc = p_alloc,
    .free = p_free,
    .get_last_native_error = p_error,
    .get_recommended_page_size = p_recommended,
    .get_min_page_size = p_min,
    .get_name = p_name,
    .get_cache_line_size = p_line,
};

static umf_memory_provider_handle_t provider;

/* A pool with the settings of SYCL's runtime for memory of devices, but for those given. */
static umf_memory_pool_handle_t pool_of(size_t poolable, size_t capacity,
                                        umf_disjoint_pool_shared_limits_handle_t limits, int trace) {
    umf_disjoint_pool_params_handle_t params;
    umf_memory_pool_handle_t pool;
    CHECK(umfDisjointPoolParamsCreate(&params));
    CHECK(umfDisjointPoolParamsSetSlabMinSize(params, 64 * KIB));
    CHECK(umfDisjointPoolParamsSetMaxPoolableSize(params, poolable));
    CHECK(umfDisjointPoolParamsSetCapacity(params, capacity));
    CHECK(umfDisjointPoolParamsSetMinBucketSize(params, 64));
    CHECK(umfDisjointPoolParamsSetTrace(params, trace));
    if (limits) {
        CHECK(umfDisjointPoolParamsSetSharedLimits(params, limits));
    }
    CHECK(umfPoolCreate(umfDisjointPoolOps(), provider, params, 0, &pool));
    umfDisjointPoolParamsDestroy(params);
    return pool;
}

static uint64_t next(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* From 64 bytes to 4 MiB, each doubling as likely as the others. */
static size_t size_from(uint64_t *seed) {
    size_t base = (size_t)64 << next(seed) % 16;
    return base + next(seed) % base;
}

enum { BLOCKS = 512, ROUNDS = 20000 };

typedef struct {
    umf_memory_pool_handle_t pool;
    uint64_t seed;
    size_t live;
    long failed;
    pthread_barrier_t *freed, *counted;
} job_t;

/* Allocates and frees, never more than `live` bytes at a time. Waits when all is freed. */
static void *work(void *argument) {
    job_t *job = argument;
    void *blocks[BLOCKS] = {NULL};
    size_t sizes[BLOCKS] = {0}, live = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int i = (int)(next(&job->seed) % BLOCKS);
        if (blocks[i]) {
            umfPoolFree(job->pool, blocks[i]);
            live -= sizes[i];
            blocks[i] = NULL;
        }
        size_t size = size_from(&job->seed);
        if (live + size <= job->live) {
            blocks[i] = umfPoolMalloc(job->pool, size);
            sizes[i] = size;
            live += blocks[i] ? size : 0;
            job->failed += !blocks[i];
        }
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i]) {
            umfPoolFree(job->pool, blocks[i]);
        }
    }
    pthread_barrier_wait(job->freed);
    pthread_barrier_wait(job->counted);
    return NULL;
}

/* Runs so many threads, which have 30 MiB live together. Sets what was kept when all was freed, with the
 * threads still there. Returns how many allocations failed. */
static long run(umf_memory_pool_handle_t pool, int threads, int waves, size_t *kept) {
    enum { MOST = 8 };
    long failed = 0;
    for (int wave = 0; wave < waves; wave++) {
        pthread_t all[MOST];
        job_t jobs[MOST];
        pthread_barrier_t freed, counted;
        pthread_barrier_init(&freed, NULL, threads + 1);
        pthread_barrier_init(&counted, NULL, threads + 1);
        for (int i = 0; i < threads; i++) {
            uint64_t seed = 88172645463325252u + 7919 * (uint64_t)(wave * threads + i);
            jobs[i] = (job_t){pool, seed, 30 * MIB / threads, 0, &freed, &counted};
            pthread_create(&all[i], NULL, work, &jobs[i]);
        }
        pthread_barrier_wait(&freed);
        *kept = have;
        pthread_barrier_wait(&counted);
        for (int i = 0; i < threads; i++) {
            pthread_join(all[i], NULL);
            failed += jobs[i].failed;
        }
    }
    return failed;
}

/* A device of 128 MiB, of which 30 MiB are live. */
static void shortage(void) {
    limit = 128 * MIB;
    const umf_result_t answers[] = {UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC, UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY};
    for (int i = 0; i < 2; i++) {
        answer = answers[i];
        for (int threads = 1; threads <= 8; threads *= 2) {
            umf_memory_pool_handle_t pool = pool_of(4 * MIB, 4, NULL, 0);
            size_t kept;
            printf("answer %d, %d threads: %ld failed\n", answer, threads, run(pool, threads, 1, &kept));
            CHECK(umfPoolDestroy(pool));
        }
    }
    /* More than there is: the code of the provider, and its error. */
    answer = UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC;
    umf_memory_pool_handle_t pool = pool_of(4 * MIB, 4, NULL, 0);
    P(umfPoolMalloc(pool, 256 * MIB) == NULL);
    P(umfPoolGetLastAllocationError(pool));
    CHECK(umfPoolDestroy(pool));
    limit = SIZE_MAX;
}

static void kept_by_threads(void) {
    for (int threads = 1; threads <= 8; threads *= 2) {
        umf_memory_pool_handle_t pool = pool_of(4 * MIB, 4, NULL, 0);
        size_t kept;
        run(pool, threads, 1, &kept);
        /* The original keeps up to 56 MiB. */
        printf("%d threads: at most 73 MiB are kept: %d\n", threads, kept <= 73 * MIB);
        fprintf(stderr, "%d threads: %zu bytes are kept\n", threads, kept);
        CHECK(umfPoolDestroy(pool));
        P(have);
    }
    umf_memory_pool_handle_t pool = pool_of(4 * MIB, 4, NULL, 0);
    size_t kept;
    run(pool, 4, 8, &kept);
    printf("8 times 4 threads: at most 73 MiB are kept: %d\n", kept <= 73 * MIB);
    fprintf(stderr, "8 times 4 threads: %zu bytes are kept\n", kept);
    CHECK(umfPoolDestroy(pool));
}

/* "Each bucket will hold a max of maxCapacity unfreed slabs." */
static void capacity(void) {
    umf_memory_pool_handle_t pool = pool_of(4 * MIB, 4, NULL, 0);
    void *blocks[6];
    for (int i = 0; i < 6; i++) {
        blocks[i] = umfPoolMalloc(pool, 2 * MIB);
    }
    for (int i = 0; i < 6; i++) {
        CHECK(umfPoolFree(pool, blocks[i]));
    }
    P(have <= 8 * MIB + 64 * KIB);
    CHECK(umfPoolDestroy(pool));
}

/* "The sum of those pools' sizes cannot exceed MaxSize." */
static void shared_limits(void) {
    umf_disjoint_pool_shared_limits_handle_t limits;
    CHECK(umfDisjointPoolSharedLimitsCreate(64 * KIB, &limits));
    umf_memory_pool_handle_t one = pool_of(2 * MIB, 4, limits, 0), other = pool_of(2 * MIB, 4, limits, 0);
    void *blocks[300];
    for (int i = 0; i < 300; i++) {
        blocks[i] = umfPoolMalloc(i % 2 ? one : other, 64);
    }
    for (int i = 0; i < 300; i++) {
        CHECK(umfFree(blocks[i]));
    }
    P(have <= 64 * KIB);
    CHECK(umfPoolDestroy(one));
    CHECK(umfPoolDestroy(other));
    CHECK(umfDisjointPoolSharedLimitsDestroy(limits));
    P(have);
}

static size_t counter(umf_memory_pool_handle_t pool, const char *name) {
    size_t value = 77;
    char path[96];
    snprintf(path, sizeof path, "umf.pool.by_handle.{}.stats.%s", name);
    CHECK(umfCtlGet(path, &value, sizeof value, pool));
    return value;
}

static void slabs_in_pool(void) {
    umf_memory_pool_handle_t pool = pool_of(2 * MIB, 4, NULL, 3);
    void *blocks[10];
    P(counter(pool, "curr_slabs_in_pool"));
    for (int i = 0; i < 10; i++) {
        blocks[i] = umfPoolMalloc(pool, 128);
    }
    P(counter(pool, "curr_slabs_in_use"));
    P(counter(pool, "curr_slabs_in_pool"));
    P(counter(pool, "max_slabs_in_pool"));
    for (int i = 0; i < 10; i++) {
        CHECK(umfPoolFree(pool, blocks[i]));
    }
    P(counter(pool, "curr_slabs_in_use"));
    P(counter(pool, "curr_slabs_in_pool"));
    P(counter(pool, "max_slabs_in_pool"));
    CHECK(umfPoolDestroy(pool));
}

int main(void) {
    CHECK(umfMemoryProviderCreate(&device, NULL, &provider));
    shortage();
    kept_by_threads();
    capacity();
    shared_limits();
    slabs_in_pool();
    CHECK(umfMemoryProviderDestroy(provider));
    return 0;
}
