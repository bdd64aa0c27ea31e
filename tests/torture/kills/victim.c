#include "victim.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PARTS = 16 };

/* Page by parts, giving way in between: the copy lasts long enough to be met in it. */
static void copy(struct pp3_ring *r, uint64_t mine)
{
    uint32_t words = page_words(r), part = words / PARTS;

    for (uint32_t at = 0; at < words; at += part) {
        if (!request_is(r, pp3_request(r, mine), pp3_ticket(mine)))
            bad("a held request that is not its round's", pp3_ticket(mine), mine);
        fill_page(r, pp3_page(r, mine), pp3_ticket(mine), at, at + part);
        (void)sched_yield();
        if (roll(4) == 0)
            pause_ns(20000);
    }
    if (!page_is(r, pp3_page(r, mine), pp3_ticket(mine)))
        bad("a held page that somebody wrote to", pp3_ticket(mine), mine);
}

static _Noreturn void victim_main(struct region *g, int owner, int order, int answer,
                                  int bell)
{
    struct pp3_ring *r;
    uint8_t byte;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    r = region_attach(g, PROXY, (uint32_t)owner, bell);
    (void)prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    rig_seed = mix((uint64_t)owner, (uint64_t)getpid());
    while (read(order, &byte, 1) == 1) {
        uint64_t mine = 0;
        int rc = pp3_take(r, &mine);

        if (rc == 1) {
            copy(r, mine);
            rc = pp3_publish(r, mine);
        } else {
            rc = rc < 0 ? rc : -ENOENT;
        }
        atomic_store(&board->copied, mine);
        atomic_store(&board->verdict, (uint64_t)-rc);
        if (write(answer, &byte, 1) != 1)
            break;
    }
    _exit(0);
}

void victim_start(struct victim *v, struct region *g, struct pp3_ring *engine)
{
    int order[2], answer[2];

    if (pipe2(order, O_CLOEXEC) != 0 || pipe2(answer, O_CLOEXEC) != 0)
        exit(3);
    v->owner = pp3_owner_add(engine);
    v->pid = fork();
    if (v->pid == 0) {
        (void)close(order[1]);
        (void)close(answer[0]);
        victim_main(g, v->owner, order[0], answer[1], pp3_bell_fd(engine));
    }
    (void)close(order[0]);
    (void)close(answer[1]);
    v->order = order[1];
    v->answer = answer[0];
}

/* Seen dead by whoever reaps it, as the watchdog sees its own. */
void victim_end(struct victim *v, struct pp3_ring *engine)
{
    (void)kill(v->pid, SIGKILL);
    (void)waitpid(v->pid, 0, 0);
    (void)pp3_owner_gone(engine, (uint32_t)v->owner);
    (void)close(v->order);
    (void)close(v->answer);
}

bool victim_answered(struct victim *v, uint64_t slack_ns)
{
    struct pollfd one = {v->answer, POLLIN, 0};
    uint8_t byte;

    if (poll(&one, 1, (int)(slack_ns / 1000000)) == 1 && read(v->answer, &byte, 1) == 1)
        return true;
    bad("a proxy that does not go on", 0, (uint64_t)v->pid);
    return false;
}
