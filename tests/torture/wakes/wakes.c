/* Lost wakes: sleeps that ran to their end although their wake had been given.
 *
 * usage: wakes MODE SEED WAITS FAULT, MODE one of threads, processes, bell, nudge, self.
 * Prints the counts of board.h, one `name number` a line.
 *
 * A futex sleep that times out was not woken before it left the kernel's queue, which it
 * does after its time U. Who resolves a round writes down D, the time when the resolving
 * call had returned, its wake behind it. Where D < U the sleeper was in the queue, or
 * about to compare the futex word, when the wake was given: it should not have slept on.
 * No margin is needed, both being the kernel's monotonic clock. The core's own detector,
 * pp3_note_late, cannot know D and waits 20 us instead; it is counted beside. */
#include "board.h"

static struct pp3_shape shape = {
    .page_bytes = 8 * WORDS, .request_bytes = 8 * WORDS, .failed_bytes = 24,
    .head_bytes = 16, .slots = 1, .max_positions = 8,
};
static int segment[5];
static struct pp3_parts parts;
static struct pp3_ring *engine;
static uint64_t sleeps_wanted;
static uint32_t proxy_owner;
static unsigned run_seed;

static void begin(unsigned actor, unsigned seed)
{
    me.share = &board->share[actor];
    me.seed = seed * 7919u + actor * 104729u + 1;
}

static uint64_t total(enum count which)
{
    uint64_t sum = 0;

    for (int i = 0; i < MOST_RANKS + 4; i++)
        sum += PP3_LOAD(&board->share[i].of[which], relaxed);
    return sum;
}

/* A planted fault costs a slice each time: once is enough. */
static int enough(enum count which)
{
    return total(which) >= sleeps_wanted ||
           (pp3_fault != 0 && total(LOST) + total(BELL_LOST) + total(NUDGE_LOST) != 0);
}

static void map_segments(struct pp3_parts *to)
{
    uint8_t **part[5] = {&to->control, &to->slots, &to->pages, &to->failed, &to->acks};
    int error;

    for (int i = 0; i < 5; i++)
        if (!(*part[i] = pp3_map(segment[i], shape.bytes[i], 1, &error)))
            abort();
}

static struct pp3_ring *attach(uint32_t owner, int bell)
{
    struct pp3_record record;
    struct pp3_ring *r;
    int error;

    pp3_record_fill(&record, &shape);
    record.owner = owner;
    if (!(r = pp3_ring_attach(&record, &parts, bell, &error)))
        abort();
    return r;
}

/* ---- ranks ------------------------------------------------------------------------ */

static void resolved(uint64_t t)
{
    if (me.won)
        put(&board->resolved[t % ROUNDS], t);
    me.won = 0;
}

/* The sleep ran out and the round was resolved all the same. */
static void judge_wait(uint64_t t)
{
    struct stamp *s = &board->resolved[t % ROUNDS];

    add(LATE, 1);
    while (PP3_LOAD(&s->ticket, acquire) != t) /* its resolver is still at it */
        (void)sched_yield();
    if (PP3_LOAD(&s->ns, relaxed) < me.futex_until)
        add(LOST, 1);
}

/* 1 when the round was read, 0 when it was not claimed yet. */
static int wait_for(struct pp3_ring *r, uint32_t rank, uint64_t t)
{
    uint64_t word;
    int rc;

    me.slept = me.won = 0;
    me.futex = NONE;
    rc = pp3_wait(r, t, UINT64_MAX, 0, &word);
    resolved(t); /* it may have failed the round itself, at its deadline */
    if (rc == -ESTALE)
        return 0;
    if (rc != 0 || pp3_ticket(word) != t || !pp3_resolved(word))
        add(WRONG, 1);
    if (me.slept)
        add(WAITS, 1);
    if (me.futex == WOKEN)
        add(ENDED_WOKEN, 1);
    if (me.futex == RAN_OUT)
        judge_wait(t);
    if (pp3_release(r, rank, t) != 0)
        add(WRONG, 1);
    return 1;
}

static void be_rank(struct pp3_ring *r, uint32_t rank)
{
    for (uint64_t t = 1; t <= PP3_LOAD(&board->last, acquire);)
        if (wait_for(r, rank, t))
            t++;
        else
            (void)sched_yield();
}

/* ---- the proxy -------------------------------------------------------------------- */

static void judge_bell(struct pp3_ring *r)
{
    uint64_t word, t;

    add(BELLS, 1);
    if (me.bell != RAN_OUT || pp3_next(r, &word) != 1)
        return;
    t = pp3_ticket(word);
    if (PP3_LOAD(&board->rung[t % ROUNDS].ticket, acquire) == t &&
        PP3_LOAD(&board->rung[t % ROUNDS].ns, relaxed) < me.bell_until)
        add(BELL_LOST, 1);
}

/* Lets some of the readers fall asleep first, from none to all of them. */
static void await_sleepers(struct pp3_ring *r, uint64_t t)
{
    uint32_t wanted = draw(r->ranks + 2);

    for (int i = 0; i < 40 && PP3_LOAD(&pp3_entry_of(r, t)->waiters, relaxed) < wanted;
         i++)
        (void)sched_yield();
    for (unsigned i = draw(120); i > 0; i--)
        PP3_PAUSE();
}

static void be_proxy(struct pp3_ring *r)
{
    uint64_t mine;

    while (!PP3_LOAD(&board->over, acquire)) {
        me.bell = NONE;
        if (pp3_take(r, &mine) != 1) {
            (void)pp3_proxy_sleep(r, -1, -1, 0, (int64_t)PP3_SLICE_NS);
            if (me.bell != NONE)
                judge_bell(r);
            continue;
        }
        await_sleepers(r, pp3_ticket(mine));
        me.won = 0;
        (void)pp3_publish(r, mine);
        resolved(pp3_ticket(mine));
    }
}

/* ---- the engine ------------------------------------------------------------------- */

static int step(uint64_t deadline_ns, int submit)
{
    int64_t t = pp3_claim(engine, 0, deadline_ns);

    if (t < 0)
        return 0;
    put(&board->claimed[t % ROUNDS], (uint64_t)t);
    if (submit && pp3_submit(engine, (uint64_t)t) != 0)
        add(WRONG, 1);
    put(&board->rung[t % ROUNDS], (uint64_t)t);
    return 1;
}

/* Some rounds are failed by whoever waits, at a deadline, some by the engine. */
static int claim_one(void)
{
    uint64_t now = pp3_now(), word, t = engine->engine->next;
    unsigned kind = draw(32);

    if (!step(kind == 0 ? now + 200000 : now + UINT64_C(600000000000), 1))
        return 0;
    if (kind == 1) {
        me.won = 0;
        (void)pp3_resolve(engine, t, PP3_CANCELLED, &word);
        resolved(t);
    }
    return 1;
}

static void be_engine(void)
{
    uint64_t next_read = 1;

    while (next_read <= PP3_LOAD(&board->last, relaxed)) {
        if (!enough(WAITS)) {
            while (claim_one()) {
            }
        } else {
            PP3_STORE(&board->last, engine->engine->next - 1, release);
        }
        if (next_read < engine->engine->next)
            next_read += (uint64_t)wait_for(engine, 0, next_read);
        else
            (void)sched_yield();
    }
}

#include "nudge.h"

/* ---- putting them together -------------------------------------------------------- */

static void act(unsigned actor, int own_mapping)
{
    struct pp3_ring *r;

    begin(actor, run_seed);
    if (own_mapping) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        map_segments(&parts);
    }
    r = attach(actor == MOST_RANKS ? proxy_owner : 0,
               actor == MOST_RANKS ? engine->bell_fd : -1);
    if (actor == MOST_RANKS)
        be_proxy(r);
    else
        be_rank(r, actor);
    pp3_ring_free(r);
}

static void *act_thread(void *actor)
{
    act((unsigned)(uintptr_t)actor, 0);
    return 0;
}

static void play(int processes)
{
    pthread_t thread[MOST_RANKS + 1];
    uint32_t ranks = shape.ranks;

    for (unsigned k = 1; k <= ranks; k++) {
        unsigned actor = k < ranks ? k : MOST_RANKS;
        if (!processes) {
            (void)pthread_create(&thread[k], 0, act_thread, (void *)(uintptr_t)actor);
        } else if (fork() == 0) {
            act(actor, 1);
            _exit(0);
        }
    }
    begin(0, run_seed);
    be_engine();
    PP3_STORE(&board->over, 1, release);
    for (unsigned k = 1; k <= ranks; k++) {
        int status = 0;
        if (!processes)
            (void)pthread_join(thread[k], 0);
        else if (wait(&status) < 0 || status != 0)
            add(WRONG, 1);
    }
}

static void set_up(uint32_t rounds, uint32_t ranks)
{
    uint64_t templates[9] = {0, 0, 2, 0, 0, 7, 0, 0, 8};
    int error, pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    shape.rounds = rounds;
    shape.pages = 2 * rounds;
    shape.ranks = ranks;
    (void)pp3_shape_fill(&shape);
    for (int i = 0; i < 5; i++)
        if ((segment[i] = memfd_create("wakes", MFD_CLOEXEC)) < 0 ||
            ftruncate(segment[i], (off_t)shape.bytes[i]) != 0)
            abort();
    map_segments(&parts);
    engine = pp3_ring_create(&shape, &parts, (const uint8_t *)templates, &error);
    if (!engine)
        abort();
    for (uint32_t k = 1; k < ranks; k++)
        (void)pp3_rank_attach(engine, k, pidfd);
    proxy_owner = (uint32_t)pp3_owner_add(engine);
    board = mmap(0, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    PP3_STORE(&board->last, UINT64_MAX, relaxed);
}

int main(int argc, char **argv)
{
    const char *mode = argc == 5 ? argv[1] : "";

    if (argc != 5)
        return 2;
    run_seed = (unsigned)strtoul(argv[2], 0, 10);
    sleeps_wanted = strtoull(argv[3], 0, 10);
    pp3_fault = (int)strtol(argv[4], 0, 10);
    /* in the bell's play nobody runs ahead: the proxy sleeps between any two rounds */
    set_up(mode[0] == 'b' ? 1 : mode[0] == 'n' ? 4 : ROUNDS,
           mode[0] == 'b' || mode[0] == 'n' || mode[0] == 's' ? 1 : 2 + run_seed % 9);
    if (mode[0] == 'n' || mode[0] == 's') {
        begin(0, run_seed);
        mode[0] == 'n' ? claim_for_watchdog() : ask_detector_both();
    } else {
        play(mode[0] == 'p' || mode[0] == 'b');
    }
    for (int i = 0; i < COUNTS; i++)
        (void)printf("%s %llu\n", count_names[i],
                     (unsigned long long)total((enum count)i));
    return 0;
}
