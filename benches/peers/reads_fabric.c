/* Measures one-sided reads, and tagged messages with their answers, over a provider of libfabric. The
 * other process sleeps in its completion queue, as a server of remote memory does.
 *
 *     reads_fabric PROVIDER ADDRESS READERS SECONDS      such as tcp, 127.0.0.1, 1 and 0.3 for each row
 *
 * ADDRESS is that of an interface, or - for any. Prints rows of `name value`: us for 64 bytes, GB/s for
 * all readers together otherwise. With several readers, only reads of 1 MiB are measured.
 */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 16 << 20, WINDOW = 16, SMALL = 64, READERS = 128 };

static struct fi_info *info;
static struct fid_domain *domain;
static struct fid_ep *endpoint;
static struct fid_cq *queue;
static struct fid_av *addresses;
static struct fid_mr *memory;

/* What a process tells the other. */
struct name {
    char bytes[256];
    uint64_t key, address;
};

static void check(ssize_t code, const char *what)
{
    if (code >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-code));
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static struct name open_endpoint(const char *provider, const char *address, char *bytes)
{
    struct fi_info *hints = fi_allocinfo();
    struct fid_fabric *fabric;
    struct fi_cq_attr of_queue = { .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD };
    struct fi_av_attr of_addresses = { .type = FI_AV_UNSPEC, .count = READERS };
    struct name name = { { 0 }, 0, 0 };
    size_t length = sizeof name.bytes;
    const char *node = strcmp(address, "-") ? address : NULL;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(provider);
    check(fi_getinfo(FI_VERSION(1, 15), node, NULL, node ? FI_SOURCE : 0, hints, &info), "fi_getinfo");
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    check(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
    if (fi_cq_open(domain, &of_queue, &queue, NULL)) {
        of_queue.wait_obj = FI_WAIT_NONE;
        check(fi_cq_open(domain, &of_queue, &queue, NULL), "fi_cq_open");
    }
    check(fi_av_open(domain, &of_addresses, &addresses, NULL), "fi_av_open");
    check(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    check(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind");
    check(fi_enable(endpoint), "fi_enable");
    check(fi_getname(&endpoint->fid, name.bytes, &length), "fi_getname");
    check(fi_mr_reg(domain, bytes, SIZE, FI_READ | FI_SEND | FI_RECV | FI_REMOTE_READ, 0, 7, 0, &memory, NULL), "fi_mr_reg");
    name.key = fi_mr_key(memory);
    name.address = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)bytes : 0;
    return name;
}

/* Returns the completions of a call that reads the queue. */
static ssize_t completed(ssize_t count)
{
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = { 0 };
        fi_cq_readerr(queue, &error, 0);
        check(-error.err, "an operation failed");
    }
    if (count == -FI_EAGAIN || count == -FI_EINTR)
        return 0;
    check(count, "fi_cq_read");
    return count;
}

static ssize_t poll_once(void)
{
    struct fi_cq_msg_entry entries[WINDOW];
    return completed(fi_cq_read(queue, entries, WINDOW));
}

static ssize_t again(ssize_t code, const char *what)
{
    if (code == -FI_EAGAIN) {
        poll_once();
        return 1;
    }
    check(code, what);
    return 0;
}

/* Answers messages, and lets the provider answer reads. Sleeps where that is possible. */
static void serve(char *bytes, fi_addr_t *peers)
{
    void *desc = fi_mr_desc(memory);
    struct fi_cq_msg_entry entry;
    int posted = 0;
    for (;;) {
        ssize_t count;
        while (!posted && again(fi_trecv(endpoint, bytes, SMALL, desc, FI_ADDR_UNSPEC, 1, 0, bytes), "fi_trecv"))
            ;
        posted = 1;
        count = fi_cq_sread(queue, &entry, 1, NULL, 100);
        if (count == -FI_ENOSYS || count == -FI_EOPNOTSUPP)
            count = fi_cq_read(queue, &entry, 1);
        if (completed(count) == 1 && entry.op_context == bytes) {
            posted = 0;
            while (again(fi_tsend(endpoint, bytes + SMALL, SMALL, desc, peers[0], 2, NULL), "fi_tsend"))
                ;
        }
    }
}

/* Reads `size` bytes with `window` reads in flight for some seconds. Returns the reads of a second. */
static double read_for(double seconds, size_t size, int window, char *bytes, struct name *server, fi_addr_t peer)
{
    double start = now(), end;
    long ended = 0, begun = 0;
    void *desc = fi_mr_desc(memory);
    do {
        while (begun - ended < window) {
            size_t offset = window > 1 ? (size_t)(begun % window) * (SIZE / window) % SIZE : 0;
            if (offset + size > SIZE)
                offset = 0;
            if (again(fi_read(endpoint, bytes + offset, size, desc, peer, server->address + offset, server->key, NULL), "fi_read"))
                break;
            begun++;
        }
        ended += poll_once();
    } while ((end = now()) - start < seconds);
    while (ended < begun)
        ended += poll_once();
    return ended / (now() - start);
}

static double messages_for(double seconds, char *bytes, fi_addr_t peer)
{
    double start = now();
    long count = 0;
    void *desc = fi_mr_desc(memory);
    do {
        int left = 2;
        while (again(fi_trecv(endpoint, bytes, SMALL, desc, FI_ADDR_UNSPEC, 2, 0, NULL), "fi_trecv"))
            ;
        while (again(fi_tsend(endpoint, bytes + SMALL, SMALL, desc, peer, 1, NULL), "fi_tsend"))
            ;
        while (left)
            left -= poll_once();
        count++;
    } while (now() - start < seconds);
    return count / (now() - start);
}

static void write_all(int fd, const void *bytes, size_t size)
{
    if (write(fd, bytes, size) != (ssize_t)size)
        check(-FI_EIO, "write");
}

static void read_all(int fd, void *bytes, size_t size)
{
    if (read(fd, bytes, size) != (ssize_t)size)
        check(-FI_EIO, "read");
}

int main(int argc, char **argv)
{
    int to_server[2], to_readers[2], results[2], readers, status;
    double seconds, sum = 0;
    pid_t server;
    char *bytes = aligned_alloc(4096, SIZE);
    if (argc != 5) {
        fprintf(stderr, "usage: reads_fabric PROVIDER ADDRESS READERS SECONDS\n");
        return 2;
    }
    readers = atoi(argv[3]);
    seconds = atof(argv[4]);
    if (!bytes || readers < 1 || readers > READERS || pipe(to_server) || pipe(to_readers) || pipe(results))
        return 1;
    memset(bytes, 1, SIZE);
    if (!(server = fork())) {
        struct name own = open_endpoint(argv[1], argv[2], bytes), name;
        static fi_addr_t peers[READERS];
        for (int reader = 0; reader < readers; reader++)
            write_all(to_readers[1], &own, sizeof own);
        for (int reader = 0; reader < readers; reader++) {
            read_all(to_server[0], &name, sizeof name);
            check(fi_av_insert(addresses, name.bytes, 1, &peers[reader], 0, NULL) == 1 ? 0 : -FI_EINVAL, "fi_av_insert");
        }
        serve(bytes, peers);
    }
    for (int reader = 0; reader < readers; reader++) {
        if (!fork()) {
            struct name other, own = open_endpoint(argv[1], argv[2], bytes);
            fi_addr_t peer;
            double rate;
            read_all(to_readers[0], &other, sizeof other);
            check(fi_av_insert(addresses, other.bytes, 1, &peer, 0, NULL) == 1 ? 0 : -FI_EINVAL, "fi_av_insert");
            write_all(to_server[1], &own, sizeof own);
            read_for(0.02, 1 << 20, 1, bytes, &other, peer);
            if (readers == 1) {
                printf("read.64b %g\n", 1e6 / read_for(seconds, SMALL, 1, bytes, &other, peer));
                printf("message.64b %g\n", 1e6 / messages_for(seconds, bytes, peer));
                printf("read.64k %g\n", 65536e-9 * read_for(seconds, 1 << 16, WINDOW, bytes, &other, peer));
                printf("read.16m %g\n", 16.777216e-3 * read_for(seconds, SIZE, 2, bytes, &other, peer));
                fflush(stdout);
            }
            rate = read_for(seconds, 1 << 20, WINDOW, bytes, &other, peer);
            write_all(results[1], &rate, sizeof rate);
            _exit(0);
        }
    }
    for (int reader = 0; reader < readers; reader++) {
        double rate;
        wait(&status);
        if (status) {
            kill(server, SIGKILL);
            return 1;
        }
        read_all(results[0], &rate, sizeof rate);
        sum += rate;
    }
    printf("read.1m %g\n", 1.048576e-3 * sum);
    kill(server, SIGKILL);
    return 0;
}
