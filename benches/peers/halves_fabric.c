/* Measures messages between two processes over a provider of libfabric (halves.h): tagged messages of
 * endpoints of the kind FI_EP_RDM, whose completions are polled.
 *
 *     halves_fabric PROVIDER PROCESSORS SECONDS      such as shm, 0,1 and 0.3 for each row
 *
 * The program starts itself twice. Both processes exchange their addresses over pipes.
 */
#define _GNU_SOURCE
#include "halves.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fid_ep *endpoint;
static struct fid_cq *queue;
static fi_addr_t peer;
/* Contexts that the provider may write. */
static struct fi_context2 sending, receiving;
static int sent, received, expected;

static void check(ssize_t code, const char *what)
{
    if (code >= 0)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, fi_strerror((int)-code));
    exit(1);
}

static void poll_once(void)
{
    struct fi_cq_tagged_entry entry;
    ssize_t count = fi_cq_read(queue, &entry, 1);
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = { 0 };
        fi_cq_readerr(queue, &error, 0);
        check(-error.err, "a message failed");
    }
    if (count == -FI_EAGAIN || count == 0)
        return;
    check(count, "fi_cq_read");
    if (entry.op_context == &sending)
        sent = 1;
    else
        received = 1;
}

static void expect(char *bytes, size_t size)
{
    ssize_t code;
    while ((code = fi_trecv(endpoint, bytes, size, NULL, peer, 0, 0, &receiving)) == -FI_EAGAIN)
        poll_once();
    check(code, "fi_trecv");
    expected = 1;
}

static void receive(char *bytes, size_t size)
{
    if (!expected)
        expect(bytes, size);
    while (!received)
        poll_once();
    received = expected = 0;
}

static void transmit(char *bytes, size_t size)
{
    ssize_t code;
    while ((code = fi_tsend(endpoint, bytes, size, NULL, peer, 0, &sending)) == -FI_EAGAIN)
        poll_once();
    check(code, "fi_tsend");
    while (!sent)
        poll_once();
    sent = 0;
}

static void open_endpoint(const char *provider)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *addresses;
    struct fi_cq_attr of_queue = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE };
    struct fi_av_attr of_addresses = { .type = FI_AV_TABLE, .count = 2 };
    char own[256] = { 0 }, other[256];
    size_t length = sizeof own;
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->data_progress = hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(provider);
    check(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info), "fi_getinfo");
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    check(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
    check(fi_cq_open(domain, &of_queue, &queue, NULL), "fi_cq_open");
    check(fi_av_open(domain, &of_addresses, &addresses, NULL), "fi_av_open");
    check(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    check(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind");
    check(fi_enable(endpoint), "fi_enable");
    check(fi_getname(&endpoint->fid, own, &length), "fi_getname");
    if (write(STDOUT_FILENO, own, sizeof own) != sizeof own || read(STDIN_FILENO, other, sizeof other) != sizeof other)
        fail("cannot exchange addresses");
    check(fi_av_insert(addresses, other, 1, &peer, 0, NULL) == 1 ? 0 : -FI_EINVAL, "fi_av_insert");
}

/* Starts both processes. A preloaded allocator is in its initial state in each. */
static int start(char **argv)
{
    int pipes[2][2], status, failed = 0;
    char output[16];
    pid_t children[2];
    if (pipe(pipes[0]) || pipe(pipes[1]))
        fail("no pipes");
    snprintf(output, sizeof output, "%d", dup(STDOUT_FILENO));
    for (int child = 0; child < 2; child++) {
        children[child] = fork();
        if (children[child] != 0)
            continue;
        dup2(pipes[child][1], STDOUT_FILENO);
        dup2(pipes[1 - child][0], STDIN_FILENO);
        for (int end = 0; end < 4; end++)
            close(pipes[end / 2][end % 2]);
        execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], child ? "1" : "0", output, (char *)NULL);
        _exit(1);
    }
    for (int child = 0; child < 2; child++) {
        waitpid(-1, &status, 0);
        /* A process alone would poll for ever. */
        if (status && !failed++)
            for (int other = 0; other < 2; other++)
                kill(children[other], SIGKILL);
    }
    return failed != 0;
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return start(argv);
    if (argc != 6)
        fail("usage: halves_fabric PROVIDER PROCESSORS SECONDS");
    rank = atoi(argv[4]);
    pin(argv[2]);
    open_endpoint(argv[1]);
    dup2(atoi(argv[5]), STDOUT_FILENO);
    /* Both know each other before the first is measured. */
    agree(0);
    measure_all(atof(argv[3]));
    agree(0);
    fi_close(&endpoint->fid);
    return 0;
}
