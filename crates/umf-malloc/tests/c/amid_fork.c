/* A signal handler that interrupts a fork forks; the interrupted fork goes on. */

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

static void handler(int number) {
    (void)number;
    int error = errno;
    if (child == 0) {
        forks++;
        pid_t pid = fork();
        if (pid == 0) {
            _exit(0);
        }
        int status = -1;
        failed += pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
    }
    errno = error;
}

int main(void) {
    char *block = malloc(100000);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    int own_failed = 0, wrong = 0;
    for (int round = 0; round < 300; round++) {
        memset(block, 1, 100000);
        /* Before, during and after the fork. */
        struct itimerval once = {{0, 0}, {0, 10 + round * 37 % 600}};
        setitimer(ITIMER_REAL, &once, NULL);
        pid_t pid = fork();
        if (pid == 0) {
            child = getpid();
            int is_whole = block[0] == 1 && block[99999] == 1;
            memset(block, 2, 100000);
            _exit(!is_whole);
        }
        int status = -1;
        own_failed += pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
        wrong += block[0] != 1 || block[99999] != 1;
        free(malloc(300000));
    }
    printf("%d failed, %d own failed, %d wrong\n", (int)failed, own_failed, wrong);
    return forks == 0;
}
