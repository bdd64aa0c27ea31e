#include "bench/death.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench/party.h"
#include "ring/atomics.h"

#define PATIENCE_MS 10000
#define ASLEEP_NS 2000000 /* the child is in pause() by then, as a proxy sleeps */

static int one_death(int32_t core, uint64_t *ns)
{
    struct pollfd one = {-1, POLLIN, 0};
    uint64_t unused, start;
    pid_t parent = getpid(), pid = fork();
    int rc = 0;

    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        pp3_party_pin(core);
        while (getppid() == parent)
            (void)pause();
        _exit(1);
    }
    if (pid < 0)
        return -errno;
    if ((one.fd = (int)syscall(SYS_pidfd_open, pid, 0)) < 0)
        rc = -errno;
    pp3_party_pause(ASLEEP_NS);
    start = pp3_now();
    (void)kill(pid, SIGKILL);
    if (rc == 0 && poll(&one, 1, PATIENCE_MS) != 1)
        rc = -ETIMEDOUT;
    *ns = pp3_now() - start;
    (void)pp3_party_reap(pid, 1, &unused);
    if (one.fd >= 0)
        (void)close(one.fd);
    return rc;
}

int pp3_floor_pidfd(uint32_t rounds, const int32_t core[2], uint64_t *ns)
{
    cpu_set_t before;
    int rc = 0;

    (void)sched_getaffinity(0, sizeof before, &before);
    pp3_party_pin(core[0]);
    for (uint32_t i = 0; i < rounds && rc == 0; i++)
        rc = one_death(core[1], &ns[i]);
    (void)sched_setaffinity(0, sizeof before, &before);
    return rc;
}
