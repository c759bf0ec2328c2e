/* A signal handler forks, also while it interrupts malloc; parent and child go on. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t forks, failed;
static volatile pid_t child;
static int most = 400;

static void handler(int number) {
    (void)number;
    int error = errno;
    if (child == 0 && forks < most) {
        forks++;
        pid_t pid = fork();
        if (pid == 0) {
            /* The child returns to the interrupted code, and exits there. */
            child = getpid();
            alarm(60);
            return;
        }
        int status = -1;
        failed += pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
    }
    errno = error;
}

int main(int argc, char **argv) {
    static char *blocks[1024];
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGPROF, &action, NULL);
    struct itimerval often = {{0, 300}, {0, 300}};
    setitimer(ITIMER_PROF, &often, NULL);
    unsigned random = 1, left = 2000;
    /* Each fork copies shared memory: fewer forks, less memory. */
    int few = argc > 1 && strcmp(argv[1], "few") == 0;
    most = few ? 100 : most;
    int wrong = 0;
    while (forks < most && left > 0) {
        random = random * 1103515245 + 12345;
        unsigned place = random >> 8 & 1023, kind = random >> 20 & 63;
        size_t size = kind == 0 && !few ? 10 << 20 : kind < 8 ? 300000 : 1 + (random >> 4 & 4095);
        if (blocks[place] != NULL) {
            wrong += blocks[place][0] != (char)place;
            free(blocks[place]);
        }
        blocks[place] = malloc(size);
        blocks[place][0] = (char)place;
        if ((random & 0xff00) == 0) {
            /* Empties the caches, so that allocations take slow paths. */
            for (int n = 0; n < 1024; n++) {
                free(blocks[n]);
                blocks[n] = NULL;
            }
        }
        /* The child allocates for a while. */
        left -= child != 0;
    }
    if (child != 0) {
        _exit(wrong != 0);
    }
    printf("%d forks, %d failed, %d wrong\n", (int)forks, (int)failed, wrong);
    return 0;
}
