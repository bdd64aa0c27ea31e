#include "faults.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>

/* Relaxed: a wrapper must order nothing that the product does not. */
static _Atomic int pass[CALLS], strike[CALLS], with[CALLS];
double exp_instead;

#define TAKE(word) atomic_fetch_sub_explicit(&(word), 1, memory_order_relaxed)
#define LOOK(word) atomic_load_explicit(&(word), memory_order_relaxed)

void fail(enum call call, int skip, int times, int error)
{
    atomic_store_explicit(&pass[call], skip, memory_order_relaxed);
    atomic_store_explicit(&with[call], error, memory_order_relaxed);
    atomic_store_explicit(&strike[call], times, memory_order_relaxed);
}

void fail_no_more(void)
{
    for (int call = 0; call < CALLS; call++)
        fail((enum call)call, 0, 0, 0);
}

/* The errno that this call fails with, or 0. */
static int struck(enum call call)
{
    if (LOOK(strike[call]) <= 0)
        return 0;
    if (LOOK(pass[call]) > 0 && TAKE(pass[call]) > 0)
        return 0;
    return TAKE(strike[call]) > 0 ? LOOK(with[call]) : 0;
}

#define PROTOTYPE(type, name, ...)                                                     \
    type __real_##name(__VA_ARGS__);                                                   \
    type __wrap_##name(__VA_ARGS__);                                                   \
    type __wrap_##name(__VA_ARGS__)

/* Fails with errno and a value, or by returning the error. */
#define BY_ERRNO(call, value, real)                                                    \
    do {                                                                               \
        int error_ = struck(call);                                                     \
        if (!error_)                                                                   \
            return real;                                                               \
        errno = error_;                                                                \
        return value;                                                                  \
    } while (0)
#define BY_VALUE(call, real)                                                           \
    do {                                                                               \
        int error_ = struck(call);                                                     \
        return error_ ? error_ : real;                                                 \
    } while (0)

PROTOTYPE(void *, calloc, size_t n, size_t size)
{
    BY_ERRNO(CALLOC, 0, __real_calloc(n, size));
}
PROTOTYPE(void *, malloc, size_t n) { BY_ERRNO(MALLOC, 0, __real_malloc(n)); }
PROTOTYPE(char *, strdup, const char *s) { BY_ERRNO(STRDUP, 0, __real_strdup(s)); }
PROTOTYPE(int, eventfd, unsigned n, int flags)
{
    BY_ERRNO(EVENTFD, -1, __real_eventfd(n, flags));
}
PROTOTYPE(void *, mmap, void *at, size_t n, int protection, int flags, int fd, off_t from)
{
    BY_ERRNO(MMAP, MAP_FAILED, __real_mmap(at, n, protection, flags, fd, from));
}
PROTOTYPE(int, madvise, void *at, size_t n, int advice)
{
    BY_ERRNO(MADVISE, -1, __real_madvise(at, n, advice));
}
PROTOTYPE(int, ppoll, struct pollfd *fds, nfds_t n, const struct timespec *t,
          const sigset_t *mask)
{
    BY_ERRNO(PPOLL, -1, __real_ppoll(fds, n, t, mask));
}
PROTOTYPE(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes,
          void *(*start)(void *), void *argument)
{
    BY_VALUE(PTHREAD_CREATE, __real_pthread_create(thread, attributes, start, argument));
}
PROTOTYPE(int, posix_spawn, pid_t *pid, const char *path,
          const posix_spawn_file_actions_t *files, const posix_spawnattr_t *attributes,
          char *const argv[], char *const envp[])
{
    BY_VALUE(SPAWN, __real_posix_spawn(pid, path, files, attributes, argv, envp));
}
PROTOTYPE(int, posix_spawn_file_actions_init, posix_spawn_file_actions_t *files)
{
    BY_VALUE(FILES_INIT, __real_posix_spawn_file_actions_init(files));
}
PROTOTYPE(int, posix_spawn_file_actions_adddup2, posix_spawn_file_actions_t *files,
          int from, int to)
{
    BY_VALUE(FILES_DUP, __real_posix_spawn_file_actions_adddup2(files, from, to));
}
PROTOTYPE(int, posix_spawn_file_actions_addclosefrom_np,
          posix_spawn_file_actions_t *files, int from)
{
    BY_VALUE(FILES_CLOSE, __real_posix_spawn_file_actions_addclosefrom_np(files, from));
}
PROTOTYPE(int, posix_spawnattr_init, posix_spawnattr_t *attributes)
{
    BY_VALUE(ATTR_INIT, __real_posix_spawnattr_init(attributes));
}
PROTOTYPE(int, posix_spawnattr_setsigmask, posix_spawnattr_t *attributes,
          const sigset_t *mask)
{
    BY_VALUE(ATTR_MASK, __real_posix_spawnattr_setsigmask(attributes, mask));
}
PROTOTYPE(int, posix_spawnattr_setsigdefault, posix_spawnattr_t *attributes,
          const sigset_t *usual)
{
    BY_VALUE(ATTR_DEFAULT, __real_posix_spawnattr_setsigdefault(attributes, usual));
}
PROTOTYPE(int, posix_spawnattr_setflags, posix_spawnattr_t *attributes, short flags)
{
    BY_VALUE(ATTR_FLAGS, __real_posix_spawnattr_setflags(attributes, flags));
}
PROTOTYPE(int, socketpair, int domain, int type, int protocol, int ends[2])
{
    BY_ERRNO(SOCKETPAIR, -1, __real_socketpair(domain, type, protocol, ends));
}
PROTOTYPE(ssize_t, sendmsg, int fd, const struct msghdr *message, int flags)
{
    BY_ERRNO(SENDMSG, -1, __real_sendmsg(fd, message, flags));
}
PROTOTYPE(int, waitid, idtype_t type, id_t id, siginfo_t *info, int options)
{
    BY_ERRNO(WAITID, -1, __real_waitid(type, id, info, options));
}
PROTOTYPE(pid_t, waitpid, pid_t pid, int *status, int options)
{
    BY_ERRNO(WAITPID, -1, __real_waitpid(pid, status, options));
}
PROTOTYPE(ssize_t, read, int fd, void *to, size_t n)
{
    BY_ERRNO(READ, -1, __real_read(fd, to, n));
}
PROTOTYPE(double, exp, double x)
{
    return struck(EXP) ? exp_instead : __real_exp(x);
}

static void (*clock_act)(void *);
static void *clock_argument;
static _Atomic int clock_left;

void at_clock(int look, void (*act)(void *), void *argument)
{
    clock_act = act;
    clock_argument = argument;
    atomic_store_explicit(&clock_left, look, memory_order_relaxed);
}

PROTOTYPE(int, clock_gettime, clockid_t clock, struct timespec *now)
{
    if (LOOK(clock_left) > 0 && TAKE(clock_left) == 1)
        clock_act(clock_argument);
    return __real_clock_gettime(clock, now);
}

/* The rest take as many words as their callers pass. */
PROTOTYPE(int, fcntl, int fd, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    BY_ERRNO(FCNTL, -1, __real_fcntl(fd, command, argument));
}
PROTOTYPE(int, prctl, int option, ...)
{
    va_list rest;
    unsigned long word[4];
    va_start(rest, option);
    for (int i = 0; i < 4; i++)
        word[i] = va_arg(rest, unsigned long);
    va_end(rest);
    BY_ERRNO(PRCTL, -1, __real_prctl(option, word[0], word[1], word[2], word[3]));
}
PROTOTYPE(long, syscall, long number, ...)
{
    va_list rest;
    long word[6] = {0};
    int n = number == SYS_pidfd_open ? 2 : number == SYS_pidfd_send_signal ? 4 : 6;
    va_start(rest, number);
    for (int i = 0; i < n; i++)
        word[i] = va_arg(rest, long);
    va_end(rest);
    if (number != SYS_pidfd_open)
        return __real_syscall(number, word[0], word[1], word[2], word[3], word[4],
                              word[5]);
    BY_ERRNO(PIDFD_OPEN, -1, __real_syscall(number, word[0], word[1]));
}
