#include "bench/floor.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench/party.h"
#include "ring/atomics.h"

#define PATIENCE_NS UINT64_C(10000000000) /* a side that is silent so long is gone */
#define LOOKS 64                          /* between two looks at the clock */

/* A sequence that one process raises and another waits for. */
struct bell {
    _Alignas(128) PP3_A32 seq;
    PP3_A32 waiters;
};

struct slot {
    struct bell asked, answered;
    uint8_t request[PP3_FLOOR_MOST], reply[PP3_FLOOR_MOST];
};

/* What all parties map. */
struct floor {
    struct slot slot[PP3_FLOOR_SLOTS];
    uint8_t got_request[PP3_FLOOR_MOST];
};

/* One side's own memory, and how it reaches the next. */
struct side {
    const struct pp3_floor_plan *plan;
    struct floor *shared;
    int link; /* -1: none */
    uint8_t in[PP3_FLOOR_MOST];
};

/* ---- shared memory ---------------------------------------------------------------- */

static void raise_to(struct bell *bell, uint32_t seq)
{
    PP3_STORE(&bell->seq, seq, release /* the bytes before it */);
    PP3_FENCE(seq_cst); /* with wait_for's: no wake-up is lost */
    if (PP3_LOAD(&bell->waiters, relaxed))
        pp3_futex_wake(&bell->seq);
}

/* Spins, then sleeps, until seq is there. 0 or -ETIMEDOUT. */
static int wait_for(struct bell *bell, uint32_t seq, uint64_t spin_ns)
{
    uint64_t now = 0, until = 0, limit = 0;
    uint32_t seen;
    int sleeps = 0, rc = 0;

    for (uint32_t i = 0; (seen = PP3_LOAD(&bell->seq, acquire)) != seq; i++) {
        if (i % LOOKS == 0 || sleeps) {
            now = pp3_now();
            limit = limit ? limit : now + PATIENCE_NS;
            until = until ? until : now + (spin_ns < PATIENCE_NS ? spin_ns : PATIENCE_NS);
        }
        if (now >= limit) {
            rc = -ETIMEDOUT;
            break;
        }
        if (now < until) {
            PP3_PAUSE();
        } else if (!sleeps) {
            sleeps = 1;
            PP3_ADD(&bell->waiters, 1, relaxed);
            PP3_FENCE(seq_cst);
        } else {
            (void)pp3_futex_wait(&bell->seq, seen, limit);
        }
    }
    if (sleeps)
        PP3_ADD(&bell->waiters, UINT32_MAX /* -1 */, relaxed);
    return rc;
}

/* ---- the parties ------------------------------------------------------------------ */

static uint32_t all_rounds(const struct pp3_floor_plan *p) { return p->warm + p->rounds; }

/* The request of round n out of shared memory. */
static int take(struct side *s, uint32_t n)
{
    struct slot *slot = &s->shared->slot[n % PP3_FLOOR_SLOTS];
    int rc = wait_for(&slot->asked, n, s->plan->spin_ns);

    if (rc == 0)
        memcpy(s->in, slot->request, s->plan->request_bytes);
    return rc;
}

static void answer(struct side *s, uint32_t n, const uint8_t *reply)
{
    struct slot *slot = &s->shared->slot[n % PP3_FLOOR_SLOTS];

    memcpy(slot->reply, reply, s->plan->reply_bytes);
    raise_to(&slot->answered, n);
}

/* The party that has the replies: behind the socket if there is one. */
static int serve(struct side *s, const uint8_t *reply)
{
    const struct pp3_floor_plan *p = s->plan;
    int rc = 0;

    for (uint32_t n = 1; rc == 0 && n <= all_rounds(p); n++) {
        rc = s->link < 0 ? take(s, n) : pp3_party_get(s->link, s->in, p->request_bytes);
        if (n == all_rounds(p)) /* before the answer, which ends the asker's wait */
            memcpy(s->shared->got_request, s->in, p->request_bytes);
        if (rc == 0 && s->link >= 0)
            rc = pp3_party_put(s->link, reply, p->reply_bytes);
        else if (rc == 0)
            answer(s, n, reply);
    }
    return rc;
}

static int relay(struct side *s)
{
    const struct pp3_floor_plan *p = s->plan;
    int rc = 0;

    for (uint32_t n = 1; rc == 0 && n <= all_rounds(p); n++) {
        if ((rc = take(s, n)) == 0 && (rc = pp3_party_put(s->link, s->in, p->request_bytes)) == 0 &&
            (rc = pp3_party_get(s->link, s->in, p->reply_bytes)) == 0)
            answer(s, n, s->in);
    }
    return rc;
}

static int ask(struct side *s, uint32_t n, const uint8_t *request)
{
    struct slot *slot = &s->shared->slot[n % PP3_FLOOR_SLOTS];

    if (s->plan->kind == PP3_FLOOR_UNIX || s->plan->kind == PP3_FLOOR_TCP)
        return pp3_party_put(s->link, request, s->plan->request_bytes);
    memcpy(slot->request, request, s->plan->request_bytes);
    raise_to(&slot->asked, n);
    return 0;
}

static int hear(struct side *s, uint32_t n)
{
    struct slot *slot = &s->shared->slot[n % PP3_FLOOR_SLOTS];
    int rc;

    if (s->plan->kind == PP3_FLOOR_UNIX || s->plan->kind == PP3_FLOOR_TCP)
        return pp3_party_get(s->link, s->in, s->plan->reply_bytes);
    if ((rc = wait_for(&slot->answered, n, s->plan->spin_ns)) == 0)
        memcpy(s->in, slot->reply, s->plan->reply_bytes);
    return rc;
}

/* This process's side. */
static int asks(struct side *s, const uint8_t *request, uint64_t *ns,
                struct pp3_floor_result *result)
{
    const struct pp3_floor_plan *p = s->plan;
    uint64_t from = pp3_now(), cpu = pp3_party_cpu(), start = 0;
    uint32_t ahead = p->in_flight - 1;
    int rc = 0;

    for (uint32_t n = 1; rc == 0 && n <= all_rounds(p) + ahead; n++) {
        if (n == p->warm + 1) {
            from = pp3_now();
            cpu = pp3_party_cpu();
        }
        pp3_party_pause(p->pause_ns);
        start = pp3_now();
        if (n <= all_rounds(p))
            rc = ask(s, n, request);
        if (rc == 0 && n > ahead)
            rc = hear(s, n - ahead);
        if (ahead == 0 && n > p->warm)
            ns[n - p->warm - 1] = pp3_now() - start;
    }
    result->wall_ns = pp3_now() - from;
    result->cpu_ns[0] = pp3_party_cpu() - cpu;
    return rc;
}

/* ---- from Python -------------------------------------------------------------------- */

/* In the child: nothing of this process but its memory is used. */
static _Noreturn void child(struct side *s, const uint8_t *reply, int relays, pid_t parent)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    pp3_party_pin(relays ? -1 : s->plan->core[1]);
    _exit((relays ? relay(s) : serve(s, reply)) == 0 ? 0 : 1);
}

static int plan_ok(const struct pp3_floor_plan *p)
{
    return p->kind <= PP3_FLOOR_RELAY_TCP && p->rounds > 0 && p->in_flight > 0 &&
           p->in_flight <= (p->kind == PP3_FLOOR_SHM ? PP3_FLOOR_SLOTS : 1u) &&
           p->rounds < UINT32_MAX / 2 && p->warm < UINT32_MAX / 2 &&
           p->request_bytes <= PP3_FLOOR_MOST && p->reply_bytes <= PP3_FLOOR_MOST;
}

/* Children first, then this side, then their ends. */
static int run(struct side *s, int fd[2], const uint8_t *request, const uint8_t *reply,
               uint64_t *ns, struct pp3_floor_result *result)
{
    int relays = s->plan->kind >= PP3_FLOOR_RELAY_UNIX, rc = 0, n = 0;
    pid_t pid[2], parent = getpid();
    uint64_t born = pp3_now();

    for (int role = 0; role <= relays && rc == 0; role++) {
        s->link = fd[1 - role]; /* the one that serves has fd[1], a relay fd[0] */
        if ((pid[n] = fork()) == 0)
            child(s, reply, role == 1, parent);
        rc = pid[n] < 0 ? -errno : 0;
        n += rc == 0;
    }
    s->link = fd[0];
    pp3_party_pin(s->plan->core[0]); /* only now: a relay may run on any core */
    if (rc == 0)
        rc = asks(s, request, ns, result);
    for (int i = 0; i < n; i++) {
        int ended = pp3_party_reap(pid[i], rc != 0, &result->cpu_ns[1 + i]);
        rc = rc ? rc : ended;
    }
    result->life_ns = pp3_now() - born;
    return rc;
}

int pp3_floor(const struct pp3_floor_plan *plan, const uint8_t *request,
              const uint8_t *reply, uint64_t *ns, struct pp3_floor_result *result,
              uint8_t *got_request, uint8_t *got_reply)
{
    cpu_set_t before;
    struct side *s;
    struct floor *shared;
    int tcp = plan->kind == PP3_FLOOR_TCP || plan->kind == PP3_FLOOR_RELAY_TCP;
    int fd[2], rc;

    memset(result, 0, sizeof *result);
    if (!plan_ok(plan))
        return -EINVAL;
    fd[0] = fd[1] = -1;
    if (plan->kind != PP3_FLOOR_SHM && (rc = pp3_party_pair(tcp, PATIENCE_NS, fd)) != 0)
        return rc;
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    s = calloc(1, sizeof *s);
    rc = !s || shared == MAP_FAILED ? -ENOMEM : 0;
    if (rc == 0) {
        s->plan = plan;
        s->shared = shared;
        (void)sched_getaffinity(0, sizeof before, &before);
        rc = run(s, fd, request, reply, ns, result);
        (void)sched_setaffinity(0, sizeof before, &before);
        memcpy(got_request, shared->got_request, plan->request_bytes);
        memcpy(got_reply, s->in, plan->reply_bytes);
    }
    free(s);
    if (shared != MAP_FAILED)
        (void)munmap(shared, sizeof *shared);
    for (int i = 0; i < 2; i++)
        if (fd[i] >= 0)
            (void)close(fd[i]);
    return rc;
}
