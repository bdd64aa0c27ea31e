/* The watchdog: deadlines, deaths, and the one proxy process that lives at a time. */
#include "ring/watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

#define MS UINT64_C(1000000)
#define EARLY_NS (200 * MS) /* a proxy that dies sooner did not really start */
#define EARLY_FREE 3u       /* so many early deaths in a row before it has to wait */
#define BACKOFF_NS (10 * MS)
#define BACKOFF_MOST_NS (1000 * MS)
#define CHILD_FD 3

enum command { STOP = 1, REPLACE = 2 };

struct pp3_watchdog {
    struct pp3_ring *ring;
    struct pp3_plan plan; /* its pointers are our copies */
    uint8_t *record;
    pthread_t thread;
    unsigned forks;
    int joined;
    PP3_A32 command;
    pthread_mutex_t lock; /* of `shown`, which any thread reads, and the offer */
    struct pp3_watch shown;
    int offered;      /* a pidfd to be watched from the next turn on, or -1 */
    uint32_t leaving; /* the owner that is not to be watched any more, or 0 */
    /* the thread's own */
    int pidfd, socket; /* -1: no proxy runs. The child sees the socket close with us */
    pid_t pid;
    uint32_t owner, early;
    int adopted; /* not our child: somebody else reaps it, and we start no other */
    uint64_t started_ns, start_at_ns, kill_at_ns; /* 0: not to be */
};

/* ---- what others see -------------------------------------------------------------- */

static void show(struct pp3_watchdog *w, int32_t state)
{
    (void)pthread_mutex_lock(&w->lock);
    w->shown.state = state;
    w->shown.pid = w->pidfd >= 0 ? w->pid : 0;
    w->shown.owner = w->pidfd >= 0 ? w->owner : 0;
    (void)pthread_mutex_unlock(&w->lock);
}

void pp3_watchdog_stats(struct pp3_watchdog *w, struct pp3_watch *stats)
{
    if (w->forks != pp3_forks) { /* the lock may be held by a thread that is not here */
        memset(stats, 0, sizeof *stats);
        return;
    }
    (void)pthread_mutex_lock(&w->lock);
    *stats = w->shown;
    (void)pthread_mutex_unlock(&w->lock);
}

/* ---- starting a proxy ------------------------------------------------------------- */

static int spawn(struct pp3_watchdog *w, int child_end)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, usual;
    int error;

    (void)sigemptyset(&none);
    (void)sigemptyset(&usual);
    (void)sigaddset(&usual, SIGTERM);
    (void)sigaddset(&usual, SIGPIPE);
    (void)sigaddset(&usual, SIGCHLD);
    if ((error = posix_spawn_file_actions_init(&files)) != 0)
        return error;
    if ((error = posix_spawnattr_init(&attributes)) != 0) {
        (void)posix_spawn_file_actions_destroy(&files);
        return error;
    }
    error = posix_spawn_file_actions_adddup2(&files, child_end, CHILD_FD);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    if (error == 0) /* ours are CLOEXEC; the engine's other libraries' may not be */
        error = posix_spawn_file_actions_addclosefrom_np(&files, CHILD_FD + 1);
#endif
    if (error == 0)
        error = posix_spawnattr_setsigmask(&attributes, &none);
    if (error == 0)
        error = posix_spawnattr_setsigdefault(&attributes, &usual);
    if (error == 0)
        error = posix_spawnattr_setflags(&attributes,
                                         POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (error == 0)
        error = posix_spawn(&w->pid, w->plan.argv[0], &files, &attributes, w->plan.argv,
                            w->plan.envp);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&files);
    return error;
}

/* The record with the owner's id and the time patched in, and the descriptors. */
static int hand_over(struct pp3_watchdog *w)
{
    union { char bytes[CMSG_SPACE(8 * sizeof(int))]; struct cmsghdr align; } control;
    struct iovec data = {w->record, w->plan.record_bytes};
    struct msghdr message = {0};
    size_t bytes = w->plan.n_fds * sizeof(int);
    uint64_t now = pp3_now();

    memcpy(w->record + offsetof(struct pp3_record, owner), &w->owner, sizeof w->owner);
    memcpy(w->record + offsetof(struct pp3_record, clock_ns), &now, sizeof now);
    memset(&control, 0, sizeof control);
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(bytes);
    control.align.cmsg_level = SOL_SOCKET;
    control.align.cmsg_type = SCM_RIGHTS;
    control.align.cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(&control.align), w->plan.fds, bytes);
    return sendmsg(w->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

static void send_signal(struct pp3_watchdog *w, int signal)
{
    (void)syscall(SYS_pidfd_send_signal, w->pidfd, signal, 0, 0);
}

/* A child whose pidfd could not be had. It has no region yet and, being unreaped, its
 * pid is still its own; ESRCH means that another part of the process reaped it. */
static void abandon(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    while (waitpid(pid, 0, 0) < 0 && errno == EINTR) {
    }
}

static int launch(struct pp3_watchdog *w)
{
    int ends[2], error;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return errno;
    error = spawn(w, ends[1]);
    (void)close(ends[1]);
    if (error == 0) {
        w->pidfd = (int)syscall(SYS_pidfd_open, w->pid, 0);
        error = w->pidfd < 0 ? errno : 0;
        if (error != 0 && error != ESRCH)
            abandon(w->pid);
    }
    if (error != 0) {
        (void)close(ends[0]);
        return error;
    }
    w->socket = ends[0];
    if ((error = hand_over(w)) != 0)
        send_signal(w, SIGKILL); /* its death is seen like any other */
    return error;
}

static void delay(struct pp3_watchdog *w, uint64_t now)
{
    uint64_t wait = 0;

    if (w->early >= EARLY_FREE)
        wait = pp3_least(BACKOFF_MOST_NS,
                         BACKOFF_NS << pp3_least(w->early - EARLY_FREE, 16));
    w->start_at_ns = now + wait;
    show(w, PP3_WATCH_WAITS);
}

/* The owner's id is living before the child gets the region; the one before it is dead,
 * for only one proxy process lives at a time. */
static void start(struct pp3_watchdog *w, uint64_t now)
{
    int owner = pp3_owner_add(w->ring);
    int error = owner < 0 ? -owner : 0;

    w->start_at_ns = 0;
    w->started_ns = now;
    if (error == 0) {
        w->owner = (uint32_t)owner;
        error = launch(w);
        if (error != 0 && w->pidfd < 0)
            (void)pp3_owner_gone(w->ring, w->owner); /* nobody ever had it */
    }
    (void)pthread_mutex_lock(&w->lock);
    w->shown.last_error = error;
    w->shown.starts += error == 0;
    (void)pthread_mutex_unlock(&w->lock);
    if (w->pidfd >= 0) {
        show(w, PP3_WATCH_RUNS);
    } else {
        w->early += w->early < 64;
        if (w->early < EARLY_FREE)
            w->early = EARLY_FREE; /* a start that failed is not tried at once */
        delay(w, now);
    }
}

/* ---- its death -------------------------------------------------------------------- */

static int32_t reap(struct pp3_watchdog *w)
{
    siginfo_t info;
    int rc;

    memset(&info, 0, sizeof info);
    do
        rc = waitid((idtype_t)P_PIDFD, (id_t)w->pidfd, &info, WEXITED);
    while (rc < 0 && errno == EINTR);
    if (rc < 0)
        return INT32_MIN; /* reaped by somebody else */
    return info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
}

/* Rounds first, bookkeeping after: somebody waits for them. */
static void bury(struct pp3_watchdog *w)
{
    uint64_t now;
    int32_t status;

    (void)pp3_owner_gone(w->ring, w->owner);
    status = w->adopted ? INT32_MIN : reap(w);
    (void)close(w->pidfd);
    if (w->socket >= 0)
        (void)close(w->socket);
    w->pidfd = w->socket = -1;
    w->kill_at_ns = 0;
    (void)pthread_mutex_lock(&w->lock);
    w->shown.deaths++;
    w->shown.last_status = status;
    (void)pthread_mutex_unlock(&w->lock);
    if (w->adopted) {
        w->adopted = 0;
        show(w, PP3_WATCH_IDLE);
        return;
    }
    now = pp3_now();
    w->early = now - w->started_ns < EARLY_NS ? w->early + (w->early < 64) : 0;
    delay(w, now);
}

/* ---- one that others started ------------------------------------------------------ */

static void forget(struct pp3_watchdog *w)
{
    (void)close(w->pidfd);
    w->pidfd = -1;
    w->adopted = 0;
    show(w, PP3_WATCH_IDLE);
}

/* pid and owner of an offer stand in `shown` since it was made. */
static void heed_offers(struct pp3_watchdog *w)
{
    uint32_t leaving;

    (void)pthread_mutex_lock(&w->lock);
    if (w->offered >= 0) {
        w->pidfd = w->offered;
        w->offered = -1;
        w->pid = w->shown.pid;
        w->owner = w->shown.owner;
        w->adopted = 1;
    }
    leaving = w->leaving;
    w->leaving = 0;
    (void)pthread_mutex_unlock(&w->lock);
    if (w->adopted && leaving == w->owner) /* else it died meanwhile */
        forget(w);
}

/* ---- the thread ------------------------------------------------------------------- */

static int obey(struct pp3_watchdog *w, uint64_t now)
{
    uint32_t command = PP3_LOAD(&w->command, acquire);

    if (command & STOP) {
        if (w->pidfd < 0 || w->adopted) /* who is not our child sees our end by itself */
            return 1;
        if (w->kill_at_ns == 0) {
            w->kill_at_ns = now + w->plan.grace_ns;
            send_signal(w, SIGTERM);
        } else if (now >= w->kill_at_ns) {
            send_signal(w, SIGKILL); /* it reaches a stopped process too */
            w->kill_at_ns = now + PP3_SLICE_NS;
        }
    } else if (command & REPLACE) {
        uint32_t seen = REPLACE;
        (void)PP3_CAS(&w->command, &seen, 0, acq_rel, relaxed);
        if (w->pidfd >= 0)
            send_signal(w, SIGKILL);
        else if (w->start_at_ns != 0)
            w->start_at_ns = now;
        w->early = 0;
    } else if (w->start_at_ns != 0 && now >= w->start_at_ns) {
        start(w, now);
    }
    return 0;
}

/* Returns when to look again. */
static uint64_t look(struct pp3_watchdog *w)
{
    uint64_t next = pp3_watch_look(w->ring, pp3_now());

    if (w->pidfd < 0 && w->start_at_ns != 0)
        next = pp3_least(next, w->start_at_ns);
    if (w->kill_at_ns != 0)
        next = pp3_least(next, w->kill_at_ns);
    pp3_watch_sleeps(w->ring, next);
    return next;
}

static void sleep_until(struct pp3_watchdog *w, uint64_t next)
{
    struct pp3_engine *g = w->ring->engine;
    struct pollfd set[2 + PP3_MAX_RANKS];
    uint32_t rank[2 + PP3_MAX_RANKS];
    nfds_t n = 2;
    uint64_t now = pp3_now(), nudges, left = next > now ? next - now : 0;
    struct timespec timeout = {(time_t)(left / (1000 * MS)), (long)(left % (1000 * MS))};

    set[0] = (struct pollfd){g->nudge_fd, POLLIN, 0};
    set[1] = (struct pollfd){w->pidfd, POLLIN, 0}; /* -1: passed over */
    for (uint32_t k = 1; k < w->ring->ranks; k++)
        if (PP3_LOAD(&g->rank[k].life, acquire /* E7 */) == PP3_LIVING) {
            rank[n] = k;
            set[n++] = (struct pollfd){g->rank[k].pidfd, POLLIN, 0};
        }
    if (ppoll(set, n, &timeout, 0) > 0) {
        if (set[0].revents && read(g->nudge_fd, &nudges, sizeof nudges) < 0)
            return; /* drained by nobody else: cannot be */
        for (nfds_t i = 2; i < n; i++)
            if (set[i].revents && pp3_rank_gone(g, rank[i]))
                pp3_wake_all(w->ring);
    }
    pp3_watch_sleeps(w->ring, 0);
}

static void *watch(void *argument)
{
    struct pp3_watchdog *w = argument;

    for (;;) {
        heed_offers(w);
        if (w->pidfd >= 0 && pp3_pidfd_gone(w->pidfd))
            bury(w);
        if (obey(w, pp3_now()))
            break;
        sleep_until(w, look(w));
        (void)pthread_mutex_lock(&w->lock);
        w->shown.ticks++;
        (void)pthread_mutex_unlock(&w->lock);
    }
    pp3_watch_sleeps(w->ring, 0);
    show(w, PP3_WATCH_STOPPED);
    return 0;
}

uint64_t pp3_watchdog_tick(struct pp3_ring *r, uint64_t now_ns)
{
    return PP3_HERE(r) ? pp3_expire(r, now_ns) : UINT64_MAX;
}

/* ---- from outside ----------------------------------------------------------------- */

static void free_strings(char **strings)
{
    for (size_t i = 0; strings && strings[i]; i++)
        free(strings[i]);
    free(strings);
}

static char **copy_strings(char **from)
{
    size_t n = 0;
    char **to;

    while (from && from[n])
        n++;
    to = calloc(n + 1, sizeof *to);
    for (size_t i = 0; to && i < n; i++)
        if (!(to[i] = strdup(from[i]))) {
            free_strings(to);
            return 0;
        }
    return to;
}

static struct pp3_watchdog *make(struct pp3_ring *r, const struct pp3_plan *plan)
{
    struct pp3_watchdog *w = calloc(1, sizeof *w);

    if (!w)
        return 0;
    w->ring = r;
    w->plan = *plan;
    w->forks = pp3_forks;
    w->joined = 1;
    w->pidfd = w->socket = w->offered = -1;
    w->shown.last_status = INT32_MIN;
    (void)pthread_mutex_init(&w->lock, 0);
    w->plan.argv = plan->argv ? copy_strings(plan->argv) : 0;
    w->plan.envp = plan->argv ? copy_strings(plan->envp) : 0;
    w->record = malloc(plan->record_bytes + 1);
    if (!w->record || (plan->argv && (!w->plan.argv || !w->plan.envp))) {
        pp3_watchdog_free(w);
        return 0;
    }
    if (plan->record_bytes)
        memcpy(w->record, plan->record, plan->record_bytes);
    if (plan->argv) {
        w->start_at_ns = 1; /* at once */
        w->shown.state = PP3_WATCH_WAITS;
    }
    return w;
}

struct pp3_watchdog *pp3_watchdog_start(struct pp3_ring *r, const struct pp3_plan *plan,
                                        int *error)
{
    struct pp3_watchdog *w;
    sigset_t all, before;

    *error = EINVAL;
    if (!PP3_HERE(r) || !r->engine || plan->n_fds > 8 ||
        (plan->argv && (plan->n_fds == 0 ||
                        plan->record_bytes < sizeof(struct pp3_record))))
        return 0;
    *error = ENOMEM;
    w = make(r, plan);
    if (!w)
        return 0;
    (void)sigfillset(&all); /* signals are for the engine's own threads */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    *error = pthread_create(&w->thread, 0, watch, w);
    (void)pthread_sigmask(SIG_SETMASK, &before, 0);
    if (*error != 0) {
        pp3_watchdog_free(w);
        return 0;
    }
    w->joined = 0;
    return w;
}

static int command(struct pp3_watchdog *w, uint32_t bits)
{
    if (w->forks != pp3_forks)
        return -EOWNERDEAD;
    for (uint32_t seen = 0; bits; ) /* a stop stays a stop */
        if (PP3_CAS(&w->command, &seen, seen | bits, acq_rel, relaxed))
            break;
    pp3_fd_ring(w->ring->engine->nudge_fd);
    return 0;
}

int pp3_watchdog_adopt(struct pp3_watchdog *w, int pidfd, int32_t pid, uint32_t owner)
{
    int own, busy;

    if (w->forks != pp3_forks)
        return -EOWNERDEAD;
    if (w->plan.argv || pid <= 0)
        return -EINVAL;
    own = fcntl(pidfd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        return -errno;
    (void)pthread_mutex_lock(&w->lock);
    busy = w->shown.pid != 0 || w->shown.state == PP3_WATCH_STOPPED;
    if (!busy) {
        w->offered = own;
        w->shown.pid = pid;
        w->shown.owner = owner;
        w->shown.state = PP3_WATCH_RUNS;
        w->shown.starts++;
    }
    (void)pthread_mutex_unlock(&w->lock);
    if (busy) {
        (void)close(own);
        return -EBUSY;
    }
    return command(w, 0);
}

int pp3_watchdog_forget(struct pp3_watchdog *w, uint32_t owner)
{
    if (w->forks != pp3_forks)
        return -EOWNERDEAD;
    (void)pthread_mutex_lock(&w->lock);
    if (w->shown.owner == owner)
        w->leaving = owner;
    (void)pthread_mutex_unlock(&w->lock);
    return command(w, 0);
}

int pp3_watchdog_kick(struct pp3_watchdog *w) { return command(w, 0); }
int pp3_watchdog_replace(struct pp3_watchdog *w) { return command(w, REPLACE); }

void pp3_watchdog_leave(struct pp3_watchdog *w)
{
    if (w->forks == pp3_forks) /* this is the process it runs in */
        return;
    if (w->socket >= 0)
        (void)close(w->socket);
    if (w->pidfd >= 0)
        (void)close(w->pidfd);
    if (w->offered >= 0)
        (void)close(w->offered);
    w->socket = w->pidfd = w->offered = -1;
}

/* One caller at a time. SIGTERM, grace, SIGKILL; deadlines are kept meanwhile. */
int pp3_watchdog_stop(struct pp3_watchdog *w)
{
    int error = command(w, STOP);

    if (error == 0 && !w->joined) {
        error = -pthread_join(w->thread, 0);
        w->joined = 1;
    }
    return error;
}

void pp3_watchdog_free(struct pp3_watchdog *w)
{
    if (!w)
        return;
    if (w->pidfd >= 0) /* of one that was adopted */
        (void)close(w->pidfd);
    if (w->offered >= 0)
        (void)close(w->offered);
    free_strings(w->plan.argv);
    free_strings(w->plan.envp);
    free(w->record);
    if (w->forks == pp3_forks)
        (void)pthread_mutex_destroy(&w->lock);
    free(w);
}
