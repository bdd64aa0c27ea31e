#include "bench/party.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

/* ---- processes -------------------------------------------------------------------- */

void pp3_party_pin(int32_t core)
{
    cpu_set_t set;

    if (core < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

void pp3_party_pause(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};

    if (ns)
        (void)nanosleep(&t, 0);
}

uint64_t pp3_party_cpu(void)
{
    struct timespec t = {0}; /* finer than getrusage, which counts ticks */

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

int pp3_party_reap(pid_t pid, int failed, uint64_t *cpu_ns)
{
    struct rusage used;
    int status = 0;

    if (failed)
        (void)kill(pid, SIGKILL);
    while (wait4(pid, &status, 0, &used) < 0)
        if (errno != EINTR)
            return -errno;
    *cpu_ns = (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * SECOND_NS +
              (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000u;
    return failed || status == 0 ? 0 : -ETIMEDOUT;
}

/* ---- sockets ---------------------------------------------------------------------- */

int pp3_party_put(int fd, const uint8_t *from, size_t n)
{
    while (n) {
        ssize_t sent = send(fd, from, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return -errno;
        from += sent;
        n -= (size_t)sent;
    }
    return 0;
}

int pp3_party_get(int fd, uint8_t *to, size_t n)
{
    while (n) {
        ssize_t got = recv(fd, to, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) /* SO_RCVTIMEO, or the end */
            return -ETIMEDOUT;
        to += got;
        n -= (size_t)got;
    }
    return 0;
}

static int tcp_pair(int fd[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    int one = 1, door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fd[1] = -1;
    if (door >= 0 && fd[0] >= 0 && bind(door, (void *)&at, size) == 0 &&
        listen(door, 1) == 0 && getsockname(door, (void *)&at, &size) == 0 &&
        connect(fd[0], (void *)&at, size) == 0)
        fd[1] = accept4(door, 0, 0, SOCK_CLOEXEC);
    int error = errno;
    if (door >= 0)
        (void)close(door);
    for (int i = 0; i < 2 && fd[1] >= 0; i++)
        (void)setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fd[1] < 0 && fd[0] >= 0)
        (void)close(fd[0]);
    return fd[1] < 0 ? -error : 0;
}

int pp3_party_pair(int tcp, uint64_t patience_ns, int fd[2])
{
    struct timeval patience = {(time_t)(patience_ns / SECOND_NS), 0};
    int rc = 0;

    if (tcp)
        rc = tcp_pair(fd);
    else if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
        rc = -errno;
    for (int i = 0; i < 2 && rc == 0; i++)
        (void)setsockopt(fd[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return rc;
}
