/* The kernel as the watchdog sees it, on a simulated clock.
 *
 * Processes are simulated, for a day of them would take a day; descriptors are real: a
 * pidfd is an eventfd, the socket and what is sent over it are what they are. So
 * whatever the watchdog does not close shows in /proc/self/fd. */
#ifndef SOAK_KERNEL_H
#define SOAK_KERNEL_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t simulated_now(void);
static int simulated_ppoll(struct pollfd *set, nfds_t n, const struct timespec *timeout,
                           const sigset_t *mask);
static int simulated_spawn(pid_t *pid);
static int remember_end(int end);
static long simulated_syscall(long number, ...);
static int simulated_waitid(idtype_t type, id_t id, siginfo_t *info, int options);
static int simulated_kill(pid_t pid, int signal);
static pid_t simulated_waitpid(pid_t pid, int *status, int options);
static int nobody_sleeps(void);

int pp3_fault;

#include "ring/atomics.h"
#undef PP3_NOW
#define PP3_NOW() simulated_now()
#undef PP3_FUTEX_WAIT
#define PP3_FUTEX_WAIT(word, seen, until_ns) nobody_sleeps()
#define pp3_now simulated_now
#define ppoll simulated_ppoll
#define posix_spawn(pid, path, files, attributes, argv, envp) simulated_spawn(pid)
#define posix_spawn_file_actions_adddup2(files, from, to) remember_end(from)
#define syscall simulated_syscall
#define waitid simulated_waitid
#define kill simulated_kill
#define waitpid simulated_waitpid
#include "ring/watchdog.c"
#undef ppoll
#undef syscall
#undef kill
#undef waitid
#undef waitpid

enum { MOST_TAKEN = 64, SENT = 4 };

/* The proxy process that lives, or the last one. */
static struct process {
    int pidfd;      /* the watchdog's; its number stays its owner's to close */
    int end, sent[SENT], n_sent;
    pid_t pid;
    int born, attached, dead, signal;
    uint64_t next_ns, dies_ns, stopped_until_ns, ends_ns;
    struct pp3_ring *ring;
    uint64_t taken[MOST_TAKEN], due_ns[MOST_TAKEN];
    int n_taken;
} process;

static int next_end = -1;
static pid_t last_pid = 1000;
static int spawn_fails, pidfd_fails; /* as the driver wants it next */
static uint64_t spawns_failed;

static int nobody_sleeps(void)
{
    (void)fprintf(stderr, "wrong: a sleep that nobody would end\n");
    _exit(1);
}

static int remember_end(int end)
{
    next_end = end;
    return 0;
}

static int simulated_spawn(pid_t *pid)
{
    if (spawn_fails) {
        spawn_fails = 0;
        spawns_failed++;
        return EAGAIN;
    }
    memset(&process, 0, sizeof process);
    process.pidfd = -1;
    process.pid = *pid = ++last_pid;
    process.end = dup(next_end); /* as the child's descriptor 3 */
    process.born = 1;
    return 0;
}

static void die(int signal);

static long simulated_syscall(long number, ...)
{
    va_list arguments;
    long result = -1;

    va_start(arguments, number);
    if (number == SYS_pidfd_open) {
        if (pidfd_fails) {
            pidfd_fails = 0;
            spawns_failed++;
            errno = EMFILE;
        } else {
            result = process.pidfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        }
    } else if (number == SYS_pidfd_send_signal) {
        int fd = va_arg(arguments, int), signal = va_arg(arguments, int);
        result = fd == process.pidfd && !process.dead ? 0 : -1;
        if (result == 0 && signal == SIGKILL)
            die(SIGKILL);
        else if (result == 0)
            process.ends_ns = simulated_now() + 3000000; /* it ends by itself, soon */
    }
    va_end(arguments);
    return result;
}

static int simulated_waitid(idtype_t type, id_t id, siginfo_t *info, int options)
{
    (void)type;
    (void)options;
    if ((int)id != process.pidfd || !process.dead)
        return -1;
    info->si_code = process.signal ? CLD_KILLED : CLD_EXITED;
    info->si_status = process.signal;
    return 0;
}

static int simulated_kill(pid_t pid, int signal)
{
    if (pid != process.pid)
        return -1;
    die(signal);
    return 0;
}

static pid_t simulated_waitpid(pid_t pid, int *status, int options)
{
    (void)status;
    (void)options;
    return pid == process.pid && process.dead ? pid : -1;
}

/* The process is gone: its memory and its descriptors with it. */
static void die(int signal)
{
    uint64_t one = 1;

    if (process.dead || !process.born)
        return;
    process.dead = 1;
    process.signal = signal;
    pp3_ring_free(process.ring);
    process.ring = 0;
    for (int i = 0; i < process.n_sent; i++)
        (void)close(process.sent[i]);
    (void)close(process.end);
    if (process.pidfd >= 0 && write(process.pidfd, &one, sizeof one) < 0)
        _exit(2); /* cannot be: a fresh counter */
}

/* What a proxy process does first: it receives a record and descriptors.
 * 1 where they were there. */
static int receive_region(struct pp3_record *record)
{
    union { char bytes[CMSG_SPACE(8 * sizeof(int))]; struct cmsghdr align; } control;
    struct iovec data = {record, sizeof *record};
    struct msghdr message = {0};
    struct cmsghdr *head;

    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    if (recvmsg(process.end, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) !=
        (ssize_t)sizeof *record)
        return 0;
    head = CMSG_FIRSTHDR(&message);
    if (!head)
        return 0;
    process.n_sent = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(process.sent, CMSG_DATA(head), (size_t)process.n_sent * sizeof(int));
    return 1;
}
#endif
