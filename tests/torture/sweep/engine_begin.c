/* The victim is the engine: what it did before the operation. */
#include "engine_begin.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

void rank_joins(struct end *me, uint32_t rank, pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);

    if (pp3_rank_attach(me->ring, rank, fd) != 0)
        wrong(the_world, "rank %u is not attached", rank);
    (void)close(fd);
}

void create(struct end *me)
{
    end_create(the_world, me);
    the_world->bell_fd = pp3_bell_fd(me->ring);
    PP3_STORE(&board->bell_fd, (uint32_t)the_world->bell_fd, relaxed);
}

void begin(struct end *me)
{
    create(me);
    rank_joins(me, 1, getppid());
    rank_joins(me, 2, getppid());
    if (pp3_owner_add(me->ring) != FIRST_OWNER)
        wrong(the_world, "another owner");
    rounds_alone(me, the_world->scene->laps);
}

void begin_step(struct end *me)
{
    begin(me);
    (void)next_step(me->ring);
}

void begin_two(struct end *me)
{
    begin_step(me);
    (void)next_step(me->ring);
}

void begin_two_late(struct end *me)
{
    begin_two(me);
    let_deadlines_pass();
}

void begin_claim(struct end *me)
{
    begin(me);
    (void)next_step(me->ring);
    (void)next_claim(me->ring);
    /* as pp3_step writes it; the harness checks it when it is taken */
    for (uint64_t i = 1; i < REQUEST_WORDS; i++)
        ((uint64_t *)(void *)pp3_request_of(me->ring, SECOND))[i] =
            pattern(1, SECOND, i);
    pp3_stamp(pp3_request_of(me->ring, SECOND), SECOND);
}

void begin_watched(struct end *me)
{
    begin(me);
    (void)next_step(me->ring);
    (void)pp3_watch_look(me->ring, pp3_now());
    pp3_watch_sleeps(me->ring, UINT64_MAX);
}

/* Rank 1 died after it attached, and has acknowledged nothing since. */
void begin_dead_rank(struct end *me)
{
    struct end rank;
    pid_t child = fork();

    if (child == 0)
        _exit(0);
    create(me);
    rank_joins(me, 1, child);
    rank_joins(me, 2, getppid());
    (void)waitpid(child, 0, 0);
    if (pp3_owner_add(me->ring) != FIRST_OWNER)
        wrong(the_world, "another owner");
    end_open(the_world, &rank, RANK, 0);
    for (uint64_t t = 1; t <= 2; t++) {
        uint64_t word;
        (void)next_step(me->ring);
        (void)pp3_resolve(me->ring, t, PP3_EXPIRED, &word);
        (void)pp3_release(rank.ring, 0, t);
        (void)pp3_release(rank.ring, 2, t);
    }
    end_close(the_world, &rank);
}

/* Takes and fences everything, by ends of its own; rounds 4 to 7 hold all pages. */
static void hold_all_pages(struct end *me, int give_one)
{
    struct end proxy, rank;
    uint64_t words[4], word;

    begin(me);
    end_open(the_world, &proxy, PROXY, FIRST_OWNER);
    end_open(the_world, &rank, RANK, 0);
    for (uint64_t i = 0; i < 4; i++) {
        if (next_step(me->ring) != (int64_t)(FIRST + i) ||
            pp3_take(proxy.ring, &words[i]) != 1)
            wrong(the_world, "no round to hold a page");
        (void)pp3_resolve(me->ring, FIRST + i, PP3_EXPIRED, &word);
        for (uint32_t k = 0; k < RANKS; k++)
            (void)pp3_release(rank.ring, k, FIRST + i);
    }
    if (give_one)
        pp3_give_back(proxy.ring, words[0]);
    for (uint32_t i = 0; i < 2; i++)
        PP3_STORE(&board->mine[i], words[i], relaxed);
    end_close(the_world, &rank);
    end_close(the_world, &proxy);
}

void begin_one_back(struct end *me) { hold_all_pages(me, 1); }
void begin_none_back(struct end *me) { hold_all_pages(me, 0); }

/* A second owner, a thread of the engine's, took both rounds and has been joined. */
void begin_owner_gone(struct end *me)
{
    struct end proxy;
    uint64_t word;

    begin_two(me);
    if (pp3_owner_add(me->ring) != FIRST_OWNER + 1)
        wrong(the_world, "another owner");
    end_open(the_world, &proxy, PROXY, FIRST_OWNER + 1);
    for (int i = 0; i < 2; i++)
        if (pp3_take(proxy.ring, &word) != 1)
            wrong(the_world, "nothing to take");
    end_close(the_world, &proxy);
}

void begin_slot(struct end *me)
{
    static const int32_t tokens[3] = {11, 12, 13};

    begin(me);
    (void)pp3_slot_reset(me->ring, 0, 1, tokens, 3);
}
