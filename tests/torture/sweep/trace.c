/* The victim under ptrace, one instruction at a time; and the sleeper.
 *
 * On aarch64 a step between a load-exclusive and its store never lets the store
 * succeed: there it takes a machine with the atomic instructions of version 8.1. */
#include "sweep.h"

#include <elf.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef __aarch64__
#define PC(registers) ((registers).pc)
#else
#define PC(registers) ((registers).rip)
#endif

enum { BLOCKED_MS = 3 };

/* Marks of the stepped part: not inlined, not alike, so that their addresses tell. */
void mark_begin(void);
void mark_end(void);
__attribute__((noinline)) void mark_begin(void)
{
    __asm__ volatile("# begin" ::: "memory");
}
__attribute__((noinline)) void mark_end(void)
{
    __asm__ volatile("# end" ::: "memory");
}

static struct end own; /* the victim's */

static _Noreturn void be_victim(struct world *w)
{
    int ready = ptrace(PTRACE_TRACEME, 0, 0, 0) == 0;
    sigset_t children; /* a tracer is told even of signals that are ignored */

    the_world = w;
    (void)sigemptyset(&children);
    (void)sigaddset(&children, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &children, 0);
    (void)raise(SIGSTOP);
    if (w->scene->prepare)
        w->scene->prepare(&own);
    if (!ready || w->fault[0])
        _exit(3);
    (void)raise(SIGSTOP);
    mark_begin();
    w->scene->operate(&own);
    mark_end();
    PP3_STORE(&board->ended, 1, release);
    (void)raise(SIGSTOP);
    _exit(0);
}

static void nap(void)
{
    const struct timespec short_one = {0, 100000};

    (void)nanosleep(&short_one, 0);
}

static uint64_t real_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* 1 it stopped, 0 not within the time; anything else is wrong. */
static int await_stop(struct world *w, int limit_ms)
{
    uint64_t until = real_ms() + (uint64_t)limit_ms;
    int status;
    pid_t seen;

    while ((seen = waitpid(w->victim, &status, limit_ms < 0 ? 0 : WNOHANG)) == 0) {
        if (real_ms() > until)
            return 0;
        nap();
    }
    if (seen != w->victim || !WIFSTOPPED(status) ||
        (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP)) {
        wrong(w, "the victim ended by itself, status %x", status);
        w->victim_dead = 1;
    }
    return 1;
}

static uintptr_t place(struct world *w)
{
    struct user_regs_struct registers;
    struct iovec all = {&registers, sizeof registers};

    if (w->victim_dead ||
        ptrace(PTRACE_GETREGSET, w->victim, (void *)NT_PRSTATUS, &all) != 0)
        return 0;
    return (uintptr_t)PC(registers);
}

/* The text is the same here as there, up to the address. */
static int at_call(uintptr_t pc)
{
#ifdef __aarch64__
    return *(const uint32_t *)pc == 0xd4000001u;
#else
    const uint8_t *text = (const uint8_t *)pc;

    return text[0] == 0x0f && text[1] == 0x05;
#endif
}

void victim_start(struct world *w)
{
    w->victim = fork();
    if (w->victim == 0)
        be_victim(w);
    if (w->victim < 0)
        abort();
    (void)await_stop(w, -1);
    w->victim_fd = (int)syscall(SYS_pidfd_open, w->victim, 0);
    (void)ptrace(PTRACE_SETOPTIONS, w->victim, 0, (void *)PTRACE_O_EXITKILL);
}

static void plain_step(struct world *w)
{
    if (ptrace(PTRACE_SINGLESTEP, w->victim, 0, 0) == 0)
        (void)await_stop(w, -1);
}

/* On to its own preparations, then to the first instruction that counts. */
void victim_resume(struct world *w)
{
    if (ptrace(PTRACE_CONT, w->victim, 0, 0) == 0)
        (void)await_stop(w, HANG_MS);
}

static enum stop woken(struct world *w)
{
    w->sleeps = 0;
    if (!await_stop(w, HANG_MS))
        wrong(w, "the victim is stuck in its sleep");
    return w->victim_dead ? GONE : MOVED;
}

void victim_begin(struct world *w)
{
    while (!w->victim_dead && place(w) != (uintptr_t)mark_begin)
        plain_step(w);
    w->begun = 1;
}

enum stop victim_step(struct world *w)
{
    uintptr_t pc;

    if (w->sleeps) {
        w->scene->unblock(w);
        return woken(w);
    }
    pc = place(w);
    if (w->victim_dead || pc == 0)
        return GONE;
    if (pc == (uintptr_t)mark_end)
        return AT_END;
    if (!w->scene->unblock || !at_call(pc)) {
        plain_step(w);
        return w->victim_dead ? GONE : MOVED;
    }
    if (ptrace(PTRACE_SINGLESTEP, w->victim, 0, 0) == 0 && !await_stop(w, BLOCKED_MS))
        w->sleeps = 1;
    return w->victim_dead ? GONE : w->sleeps ? ASLEEP : MOVED;
}

/* SIGKILL where it stands; back when its pidfd says that it is gone. */
void victim_kill(struct world *w)
{
    struct pollfd gone = {w->victim_fd, POLLIN, 0};
    int status;

    (void)kill(w->victim, SIGKILL);
    if (poll(&gone, 1, HANG_MS) != 1 || !pp3_pidfd_gone(w->victim_fd))
        wrong(w, "the victim's pidfd does not tell of its death");
    while (waitpid(w->victim, &status, __WALL) == w->victim && !WIFSIGNALED(status) &&
           !WIFEXITED(status)) {}
    w->victim_dead = 1;
    w->rank_dead |= w->scene->role == RANK;
    if (w->scene->role == PROXY)
        w->dead[w->victim_owner] = 1;
}

/* ---- a rank that sleeps in the futex ---- */

static _Noreturn void be_sleeper(struct world *w)
{
    struct end end;
    uint64_t word = 0;
    int code;

    end_open(w, &end, RANK, 0);
    code =
        pp3_wait(end.ring, w->scene->asleep, pp3_now() + 100 * PATIENCE_NS, 0, &word);
    PP3_STORE(&board->slept_word, word, relaxed);
    PP3_STORE(&board->slept_code, (uint32_t)code, relaxed);
    PP3_STORE(&board->slept_torn, code == 0 && !reply_whole(end.ring, word), release);
    _exit(0);
}

static char state_of(pid_t pid)
{
    char path[40], line[200], *after;
    FILE *file;
    size_t n;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    file = fopen(path, "r");
    n = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file)
        (void)fclose(file);
    line[n] = 0;
    after = strrchr(line, ')');
    return after && after[1] ? after[2] : '?';
}

/* Back when it is counted and asleep. */
void sleeper_start(struct world *w)
{
    struct pp3_entry *entry = &w->rank.ring->entries[w->scene->asleep % ROUNDS];
    uint32_t before = PP3_LOAD(&entry->waiters, acquire);
    uint64_t until = real_ms() + HANG_MS;

    w->sleeper = fork();
    if (w->sleeper == 0)
        be_sleeper(w);
    while (PP3_LOAD(&entry->waiters, acquire) == before ||
           state_of(w->sleeper) != 'S') {
        if (real_ms() > until) {
            wrong(w, "the sleeper did not fall asleep");
            return;
        }
        nap();
    }
}

void sleeper_join(struct world *w)
{
    uint64_t until = real_ms() + HANG_MS;
    int status;
    pid_t seen;

    while ((seen = waitpid(w->sleeper, &status, WNOHANG)) == 0 && real_ms() < until)
        nap();
    if (seen == 0) {
        wrong(w, "stuck: the sleeping rank was not woken by the deadline");
        (void)kill(w->sleeper, SIGKILL);
        (void)waitpid(w->sleeper, &status, 0);
    } else if (status != 0) {
        wrong(w, "the sleeper ended with status %x", status);
    }
    w->sleeper = 0;
}
