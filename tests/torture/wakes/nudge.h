/* The play of the watchdog's nudge, and the one that asks the core's own detector. */
#ifndef WAKES_NUDGE_H
#define WAKES_NUDGE_H

/* ---- the watchdog's nudge --------------------------------------------------------- */

static const struct pollfd *watchdog_set(const struct pollfd *set, nfds_t n)
{
    return engine && engine->engine && n > 0 && set[0].fd == engine->engine->nudge_fd
               ? set
               : 0;
}

/* The watchdog is the only one that fails these rounds. One that it overslept is open,
 * its deadline earlier than the announced end of the sleep, its claim over before it. */
static void judge_nudge(const struct pollfd *set, uint64_t until, int ready)
{
    uint64_t announced = PP3_LOAD(&engine->engine->wake_at_ns, relaxed);

    if (!me.share) /* the core's own thread: it is counted from its first sleep on */
        begin(1, run_seed);
    if (ready > 0)
        add(NUDGES, set[0].revents != 0);
    if (ready != 0)
        return;
    for (uint32_t e = 0; e < engine->rounds; e++) {
        uint64_t w = PP3_LOAD(&engine->entries[e].state, acquire);
        struct stamp *s = &board->claimed[pp3_ticket(w) % ROUNDS];

        if (w != 0 && !pp3_resolved(w) &&
            PP3_LOAD(&s->ticket, acquire) == pp3_ticket(w) &&
            PP3_LOAD(&s->ns, relaxed) < pp3_least(until, announced) &&
            PP3_LOAD(&engine->entries[e].deadline_ns, relaxed) < announced) {
            add(NUDGE_LOST, 1);
            return;
        }
    }
}

/* Rank 0 lets go of the rounds that are resolved; the oldest that is open. */
static uint64_t release_resolved(uint64_t oldest)
{
    uint64_t word;

    while (oldest < engine->engine->next && pp3_word(engine, oldest, &word) == 0 &&
           pp3_resolved(word))
        if (pp3_release(engine, 0, oldest++) != 0)
            add(WRONG, 1);
    return oldest;
}

/* Up to all entries are open, so that claims meet the watchdog in any of its states. */
static void claim_for_watchdog(void)
{
    struct pp3_plan plan = {0};
    struct pp3_watchdog *watchdog;
    uint64_t oldest = 1;
    int error;

    longest_hold = 1000; /* as long as a whole turn of the watchdog */
    watchdog = pp3_watchdog_start(engine, &plan, &error);
    while (!enough(NUDGES)) {
        for (unsigned i = draw(draw(4) ? 100 : 3000); i > 0; i--)
            PP3_PAUSE();
        oldest = release_resolved(oldest);
        if (engine->engine->next < oldest + 1 + draw(shape.rounds) &&
            !step(pp3_now() + 2000 + draw(40000), 0))
            add(WRONG, 1);
    }
    (void)pp3_watchdog_stop(watchdog);
    pp3_watchdog_free(watchdog);
}

/* ---- does the core's own detector see? -------------------------------------------- */

static void *sleep_once(void *argument)
{
    (void)argument;
    begin(1, 1);
    (void)wait_for(engine, 0, engine->engine->next - 1);
    return 0;
}

/* A round resolved by a bare swap, no wake behind it, while a rank sleeps: the core must
 * count one lost wake. With the seq raised but late: none. */
static void ask_detector(int raise)
{
    pthread_t sleeper;
    uint64_t t = engine->engine->next, w;
    struct pp3_entry *n = pp3_entry_of(engine, t);

    (void)step(pp3_now() + UINT64_C(600000000000), 1);
    (void)pthread_create(&sleeper, 0, sleep_once, 0);
    while (PP3_LOAD(&n->waiters, relaxed) == 0)
        (void)usleep(100);
    (void)usleep(1000); /* most likely it sleeps now; if not, it finds the word */
    w = PP3_LOAD(&n->state, acquire);
    if (raise)
        PP3_ADD(&n->seq, 1, release);
    PP3_STORE(&n->state, pp3_with(w, PP3_PUBLISHED, 1), release);
    put(&board->resolved[t % ROUNDS], t);
    (void)pthread_join(sleeper, 0);
}

static void ask_detector_both(void)
{
    uint64_t before;

    for (int i = 0; i < 20 && total(DETECTED) == 0; i++)
        ask_detector(0);
    before = total(DETECTED);
    ask_detector(1);
    if (before != 1 || total(DETECTED) != before)
        add(WRONG, 1);
}

#endif
