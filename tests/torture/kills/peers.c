#include "peers.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONTROL_FD = 3, PROXY_FDS = 5, MOST_HELD = 64 };

/* ---- the proxy -------------------------------------------------------------------- */

/* What the watchdog sends: the record; control, slots, pages, the board, the bell. */
static struct pp3_ring *received(void)
{
    union { char bytes[CMSG_SPACE(8 * sizeof(int))]; struct cmsghdr align; } control;
    struct pp3_record record;
    struct iovec data = {&record, sizeof record};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int fd[PROXY_FDS];
    struct region g = {.fd = {-1, -1, -1, -1, -1}};

    if (recvmsg(CONTROL_FD, &message, 0) != (ssize_t)sizeof record ||
        control.align.cmsg_len != CMSG_LEN(sizeof fd))
        _exit(0); /* the engine died over it */
    memcpy(fd, CMSG_DATA(&control.align), sizeof fd);
    memcpy(g.fd, fd, 3 * sizeof(int));
    board_take(fd[3]);
    g.shape = record.shape;
    return region_attach(&g, PROXY, record.owner, fd[4]);
}

static bool told_to_end(int milliseconds, int bell)
{
    struct pollfd set[2] = {{CONTROL_FD, POLLIN, 0}, {bell, POLLIN, 0}};

    return poll(set, bell >= 0 ? 2 : 1, milliseconds) > 0 && set[0].revents;
}

static bool still_its_request(struct pp3_ring *r, uint64_t mine)
{
    if (request_is(r, pp3_request(r, mine), pp3_ticket(mine)))
        return true;
    bad("a held request that is not its round's", pp3_ticket(mine), mine);
    return false;
}

/* Writes the page in parts, and stands still in between as one that is preempted. A
 * round may be failed all the while: page and request are this proxy's until it lets
 * go. */
static void answer(struct pp3_ring *r, uint64_t mine)
{
    uint32_t words = page_words(r), part = 1 + (uint32_t)roll(words);
    int rc;

    here(AT_COPYING);
    for (uint32_t at = 0; at < words; at += part) {
        uint32_t end = at + part < words ? at + part : words;

        if (!still_its_request(r, mine))
            return;
        fill_page(r, pp3_page(r, mine), pp3_ticket(mine), at, end);
        if (roll(4) == 0)
            pause_ns(roll(roll(16) ? 60000 : 2000000));
    }
    if (!page_is(r, pp3_page(r, mine), pp3_ticket(mine)))
        bad("a held page that somebody wrote to", pp3_ticket(mine), mine);
    rc = pp3_publish(r, mine);
    if (rc == 0)
        atomic_fetch_add(&board->served, 1);
    else if (rc == -ESTALE)
        atomic_fetch_add(&board->fenced, 1);
    else
        bad("a refused publication", pp3_ticket(mine), (uint64_t)rc);
    here(0);
}

static int take_some(struct pp3_ring *r, uint64_t *held, int n)
{
    int rc = 0;

    while (n < (int)r->rounds && roll(4) && (rc = pp3_take(r, &held[n])) == 1)
        n++;
    if (rc < 0)
        bad("a refused take", r->cursor, (uint64_t)rc);
    here(0);
    return n;
}

/* In any order; those that are left are answered later, or swept. */
static int answer_some(struct pp3_ring *r, uint64_t *held, int n)
{
    int answered = 0;

    for (int k = 1 + (int)roll((uint64_t)n); k > 0 && n > 0; k--) {
        int i = (int)roll((uint64_t)n);

        if (!is_answered(pp3_ticket(held[i])))
            continue;
        answer(r, held[i]);
        held[i] = held[--n];
        answered++;
    }
    if (answered == 0)
        pause_ns(100000);
    return n;
}

static void idle(struct pp3_ring *r)
{
    pp3_work_prepare(r);
    if (!pp3_work_pending(r))
        (void)told_to_end(10, r->bell_fd);
    pp3_work_done(r);
}

void proxy_main(uint64_t seed)
{
    struct pp3_ring *r;
    uint64_t held[MOST_HELD];
    int n = 0;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    r = received();
    rig_seed = mix(seed, (uint64_t)getpid());
    rig_where = &board->where[r->owner];
    here(0);
    while (!told_to_end(0, -1) && !is_bad()) {
        n = pp3_sweep(r, held, n);
        here(0);
        n = take_some(r, held, n);
        if (n == 0) {
            idle(r);
            continue;
        }
        n = answer_some(r, held, n);
    }
    _exit(0);
}

/* ---- a rank ----------------------------------------------------------------------- */

/* A dead engine resolves nothing, and its rounds may be due in a minute. */
static int wait_with_engine(struct pp3_ring *r, uint64_t t, int told, uint64_t slack,
                            uint64_t *word)
{
    uint64_t begin = pp3_now();
    struct pollfd engine = {told, 0, 0};
    int rc;

    do {
        rc = pp3_wait(r, t, pp3_now() + 50000000, roll(2) * 20000, word);
        if (rc == -ETIMEDOUT && poll(&engine, 1, 0) == 1)
            _exit(0);
    } while (rc == -ETIMEDOUT && within(begin, slack));
    return rc;
}

static void read_round(struct pp3_ring *r, uint32_t rank, uint64_t t, int told,
                       uint64_t slack)
{
    struct seen *log = &board->seen[rank][t % LOG];
    uint64_t word = 0;
    int rc = wait_with_engine(r, t, told, slack, &word);

    if (rc != 0) {
        bad("a rank's wait that ended without an outcome", t, (uint64_t)rc);
        return;
    }
    here(AT_READING);
    (void)round_is_whole(r, t, word);
    pause_ns(roll(4) ? 0 : roll(100000));
    (void)round_is_whole(r, t, word); /* and it stands still until it is released */
    atomic_store(&log->word, word);
    atomic_store(&log->ticket, t);
    rc = pp3_release(r, rank, t);
    if (rc != 0)
        bad("a refused release", t, (uint64_t)rc);
    here(0);
}

void rank_main(struct region *g, uint32_t rank, int told, uint64_t slack_ns)
{
    struct pp3_ring *r = region_attach(g, RANK, rank, -1);
    uint64_t t;

    rig_where = &board->rank_where[rank];
    rig_seed = mix(rank, (uint64_t)getpid());
    here(0);
    while (read(told, &t, sizeof t) == (ssize_t)sizeof t && !is_bad())
        read_round(r, rank, t, told, slack_ns);
    _exit(0); /* the engine has no more rounds, or is dead */
}
