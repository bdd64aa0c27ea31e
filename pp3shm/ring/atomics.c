/* The calls of the kernel that the protocol stands on. */
#include "ring/atomics.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

unsigned pp3_forks;

static void forked(void) { pp3_forks++; }

#define CLOCKSOURCE "/sys/devices/system/clocksource/clocksource0/current_clocksource"

int pp3_counter_steady;

/* A kernel that distrusts the counter, or may not use it (some virtual machines), has
 * another source; one that hides the file is taken for such. */
int pp3_counter_is_clock(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char name[32] = {0};
    ssize_t got;

    if (fd < 0)
        return 0;
    got = read(fd, name, sizeof name - 1);
    (void)close(fd);
    return got > 0 &&
           (strcmp(name, "tsc\n") == 0 || strcmp(name, "arch_sys_counter\n") == 0);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void watch_forks(void)
{
    pp3_counter_steady = pp3_counter_is_clock(CLOCKSOURCE);
    (void)pthread_atfork(0, 0, forked);
}

/* Before the first region: the child has to know before it can ask. */
void pp3_watch_forks(void) { (void)pthread_once(&once, watch_forks); }

uint64_t pp3_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Shared futex (no PRIVATE flag); BITSET because its time is absolute. */
int pp3_futex_wait(PP3_A32 *word, uint32_t seen, uint64_t until_ns)
{
    struct timespec until = {(time_t)(until_ns / 1000000000u),
                             (long)(until_ns % 1000000000u)};
    long rc = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, &until, 0,
                      FUTEX_BITSET_MATCH_ANY);

    return rc == -1 && errno == ETIMEDOUT ? 0 : 1;
}

void pp3_futex_wake(PP3_A32 *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, 0, 0, 0);
}

int pp3_pidfd_gone(int pidfd)
{
    struct pollfd one = {pidfd, POLLIN, 0};

    return poll(&one, 1, 0) == 1 && (one.revents & (POLLIN | POLLHUP)) != 0;
}

/* A full counter (EAGAIN) is a rung bell too. */
void pp3_fd_ring(int fd)
{
    uint64_t one = 1;

    if (write(fd, &one, sizeof one) < 0)
        return;
}

uint8_t *pp3_map(int fd, uint64_t bytes, int writable, int *error)
{
    void *at = mmap(0, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                    fd, 0);

    pp3_watch_forks();
    *error = at == MAP_FAILED ? errno : 0;
    if (*error == 0 && madvise(at, bytes, MADV_DONTFORK) != 0) {
        *error = errno;
        (void)munmap(at, bytes);
    }
    return *error == 0 ? at : 0;
}

/* forks: pp3_fork_count as it was at pp3_map. In a forked child nothing of ours is
 * mapped there, but something else may be. */
void pp3_unmap(uint8_t *address, uint64_t bytes, unsigned forks)
{
    if (address && forks == pp3_forks)
        (void)munmap(address, bytes);
}

unsigned pp3_fork_count(void) { return pp3_forks; }
