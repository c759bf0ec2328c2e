/* Checks the exported functions. Prints one line for each check: `ok` or `bad`, and what it checks. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Volatile, so that the compiler does not optimise the calls away. */
static void *(*volatile take)(size_t) = malloc;
static void *(*volatile take_zeroed)(size_t, size_t) = calloc;
static void *(*volatile change)(void *, size_t) = realloc;
static void *(*volatile change_array)(void *, size_t, size_t) = reallocarray;
static void (*volatile give)(void *) = free;

static int bad;

static void check(const char *what, int holds) {
    printf("%s %s\n", holds ? "ok" : "bad", what);
    bad += !holds;
}

static int is_aligned(const void *block, size_t align) { return ((uintptr_t)block & (align - 1)) == 0; }

static int is_all(const unsigned char *block, unsigned char byte, size_t size) {
    for (size_t place = 0; place < size; ++place) {
        if (block[place] != byte) {
            return 0;
        }
    }
    return 1;
}

static void sizes(void) {
    void *one = take(0), *two = take(0);
    check("two blocks of no bytes are two", one && two && one != two);
    give(one);
    give(two);
    give(NULL);
    errno = 0;
    check("half of all addresses is too much", !take((size_t)PTRDIFF_MAX + 1) && errno == ENOMEM);
    errno = 0;
    check("all addresses are too much", !take(SIZE_MAX) && errno == ENOMEM);
    errno = 0;
    check("as much as can be named is too much", !take(PTRDIFF_MAX) && errno == ENOMEM);
    errno = 0;
    check("a product that overflows is too much", !take_zeroed(SIZE_MAX / 2 + 2, 2) && errno == ENOMEM);
    errno = 0;
    check("reallocarray, too", !change_array(NULL, SIZE_MAX / 2 + 2, 2) && errno == ENOMEM);
    errno = 77;
    for (size_t size = 1; size < 64 << 20; size = size * 5 / 3 + 1) {
        void *block = take(size);
        int fits = block && malloc_usable_size(block) >= size && is_aligned(block, 16);
        if (!fits) {
            check("blocks have their size and alignment", 0);
        } else {
            memset(block, 0xff, malloc_usable_size(block));
        }
        give(block);
        unsigned char *zeroed = take_zeroed(1, size);
        if (!zeroed || !is_all(zeroed, 0, size)) {
            check("calloc yields zeros", 0);
        }
        give(zeroed);
    }
    check("errno is left alone by what succeeds", errno == 77);
    check("nothing has no usable size", malloc_usable_size(NULL) == 0);
}

static void alignments(void) {
    for (size_t align = 1; align <= 256 << 20; align *= align < 1 << 20 ? 2 : 16) {
        for (size_t size = 0; size <= 100000; size = size * 19 + 5) {
            void *blocks[3] = {aligned_alloc(align, size), memalign(align, size), NULL};
            int result = posix_memalign(&blocks[2], align, size);
            for (int place = 0; place < (align < sizeof(void *) ? 2 : 3); ++place) {
                if (!blocks[place] || !is_aligned(blocks[place], align) || malloc_usable_size(blocks[place]) < size) {
                    printf("bad alignment %zu of %zu bytes, by %d: %p\n", align, size, place, blocks[place]);
                    bad++;
                } else {
                    memset(blocks[place], 1, size);
                }
                give(blocks[place]);
            }
            if (result != (align < sizeof(void *) ? EINVAL : 0)) {
                check("posix_memalign takes powers of two from a pointer's size on", 0);
            }
        }
    }
    void *block = &block;
    errno = 5;
    check("24 is no alignment", posix_memalign(&block, 24, 8) == EINVAL && block == &block && errno == 5);
    check("nor is 0", posix_memalign(&block, 0, 8) == EINVAL);
    check("posix_memalign says what is lacking",
          posix_memalign(&block, 64, PTRDIFF_MAX) == ENOMEM && block == &block && errno == 5);
    void *page = valloc(10), *pages = pvalloc(4097);
    check("valloc and pvalloc give pages",
          is_aligned(page, 4096) && is_aligned(pages, 4096) && malloc_usable_size(pages) >= 8192);
    give(page);
    give(pages);
}

static void reallocations(void) {
    int is_kept = 1;
    unsigned char *block = NULL;
    size_t had = 0;
    for (size_t size = 1; size < 80 << 20; size += size / 3 + 1) {
        block = change(block, size);
        is_kept &= block && is_all(block, (unsigned char)had, had > 4096 ? 4096 : had) && (!had || block[had - 1] == (unsigned char)had);
        memset(block, (unsigned char)size, size);
        had = size;
    }
    for (size_t size = had; size > 1; size = size * 2 / 5) {
        block = change(block, size);
        is_kept &= block && is_all(block, (unsigned char)had, size);
    }
    check("contents come along", is_kept);
    errno = 0;
    check("what is too much leaves the block", !change(block, PTRDIFF_MAX) && errno == ENOMEM && block[0] == (unsigned char)had);
    check("a block of no bytes is freed", !change(block, 0));
    unsigned char *aligned = aligned_alloc(4096, 100);
    memset(aligned, 9, 100);
    aligned = change(aligned, 100000);
    check("of aligned blocks, too", is_all(aligned, 9, 100));
    give(aligned);
    /* A large block that grows little by little. */
    size_t size = 9 << 20;
    unsigned char *grown = take(size);
    memset(grown, 3, size);
    for (int times = 0; times < 200; ++times) {
        grown = change(grown, size + 8192);
        memset(grown + size, 3, 8192);
        size += 8192;
    }
    check("large blocks keep what they have", is_all(grown, 3, size));
    give(grown);
}

static void foreign(void) {
    static long nobodys[8];
    give(&nobodys[4]);
    void *(*inner)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "__libc_malloc");
    if (inner) {
        void *block = inner(100);
        check("the C library's own blocks are not ours", malloc_usable_size(block) == 0);
        give(block);
    }
    char *map = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    give(map + 4096);
    munmap(map, 8192);
    give(map + 4096);
    give((void *)16);
    give((void *)-16);
    check("what is not ours is left alone", nobodys[4] == 0);
    char *block = take(100);
    give(block + 16);
    give(block);
    give(block);
    char *again[200];
    for (int place = 0; place < 200; ++place) {
        again[place] = take(100);
        again[place][0] = (char)place;
    }
    int apart = 1;
    for (int place = 0; place < 200; ++place) {
        apart &= again[place][0] == (char)place;
        give(again[place]);
    }
    check("a block that is freed twice is handed out once", apart);
}

static char *volatile from_handlers;
static int handled, apart;

/* A block above the pool's largest class is a mapping of whole pages. */
enum { LARGE = 9000001 };

static void in_handler(void) {
    for (size_t size = 1; size < 1 << 20; size *= 3) {
        char *block = take(size);
        memset(block, 1, size);
        give(from_handlers);
        from_handlers = block;
    }
    handled++;
    /* A block of the bootstrap allocator has exactly the requested size: so the pool was locked. */
    char *large = take(LARGE);
    apart += malloc_usable_size(large) == LARGE;
    give(large);
}

/* Before any library's constructor: fork handlers that are registered first run while the pool is locked. */
static void begin(void) { pthread_atfork(in_handler, in_handler, in_handler); }
__attribute__((section(".preinit_array"), used)) static void (*first)(void) = begin;

static void forks(void) {
    char *shared = take(10000000), *small = take(100);
    strcpy(shared, "parent");
    strcpy(small, "parent");
    int is_apart = 1, to[2], back[2];
    for (int times = 0; times < 10; ++times) {
        if (pipe(to) || pipe(back)) {
            abort();
        }
        pid_t child = fork();
        if (child == 0) {
            char letter = 'x';
            int is_old = !strcmp(shared, "parent") && !strcmp(small, "parent");
            strcpy(shared, "child");
            strcpy(small, "child");
            if (write(back[1], &letter, 1) != 1 || read(to[0], &letter, 1) != 1) {
                _exit(2);
            }
            is_old &= !strcmp(shared, "child") && !strcmp(small, "child");
            for (int n = 0; n < 1000; ++n) {
                char *own = take(n * 50);
                memset(own, n, n * 50);
                own = change(own, n * 70 + 1);
                give(own);
            }
            shared = change(shared, 12000000);
            is_old &= !strcmp(shared, "child");
            give(shared);
            give(small);
            _exit(!is_old);
        }
        char letter;
        int status = -1;
        if (read(back[0], &letter, 1) != 1) {
            abort();
        }
        is_apart &= !strcmp(shared, "parent") && !strcmp(small, "parent");
        for (int n = 0; n < 1000; ++n) {
            give(take(n * 50));
        }
        if (write(to[1], &letter, 1) != 1 || waitpid(child, &status, 0) != child) {
            abort();
        }
        is_apart &= status == 0;
        close(to[0]), close(to[1]), close(back[0]), close(back[1]);
    }
    check("a child and its parent do not see each other's writes", is_apart);
    check("handlers of forks allocate", handled >= 20);
    char *large = take(LARGE);
    check("while the pool is locked", apart == handled && malloc_usable_size(large) > LARGE);
    give(large);
    give(shared);
    give(small);
}

static pthread_key_t keys[100];

static void at_end_of_thread(void *value) {
    /* Other destructors, and the pool's own, run before or after this one. */
    char *block = take(300);
    memset(block, 1, 300);
    give(block);
    give(value);
}

static void *with_keys(void *unused) {
    for (int place = 0; place < 100; ++place) {
        pthread_setspecific(keys[place], take(100 + place));
    }
    return unused;
}

static void threads(void) {
    for (int place = 0; place < 100; ++place) {
        pthread_key_create(&keys[place], at_end_of_thread);
    }
    for (int round = 0; round < 50; ++round) {
        pthread_t all[8];
        for (int place = 0; place < 8; ++place) {
            pthread_create(&all[place], NULL, with_keys, NULL);
        }
        for (int place = 0; place < 8; ++place) {
            pthread_join(all[place], NULL);
        }
    }
    check("threads begin and end, with values under late keys", 1);
}

static void at_end(void) {
    char *block = take(1000);
    memset(block, 1, 1000);
    give(block);
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    check("this program is served by the library", malloc_usable_size((void *)1) == 0xDEADBEEF);
    sizes();
    alignments();
    reallocations();
    /* With a threshold, unknown addresses go to the C library, which aborts the program. */
    if (count < 2 || strcmp(arguments[1], "threshold")) {
        foreign();
    }
    forks();
    threads();
    malloc_trim(0);
    atexit(at_end);
    char *text = NULL;
    check("the C library's own calls are served", asprintf(&text, "%d", 1234) == 4 && malloc_usable_size(text) >= 5);
    give(text);
    printf("%d bad\n", bad);
    return bad != 0;
}
