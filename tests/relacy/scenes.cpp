/* The scenes: bounded configurations of the ring's own text, searched by Relacy.
 *
 * scenes                          the table of scenes
 * scenes NAME full [CAP]          complete search, at most CAP executions
 * scenes NAME random N [FIRST]    N random executions, seeds FIRST to FIRST + N - 1
 * ... order SITE ORDER, ... fault NUMBER   planted first; only in the switched copy
 *
 * Prints `NAME MODE EXECUTIONS OUTCOME`, where the outcome is complete, capped, random
 * or what was found wrong.
 */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>

using namespace machine;

/* ---- a round, from its claim to the next one's -------------------------------------- */

static void engine_two_rounds()
{
    (void)step();
    (void)step();
}
static void proxy_twice()
{
    serve();
    serve();
}
static void rank_looks_twice()
{
    if (look(1))
        (void)look(2);
}
static void engine_three_rounds()
{
    engine_two_rounds();
    (void)step();
}
static void proxy_thrice()
{
    proxy_twice();
    serve();
}
static void rank_looks_thrice()
{
    rank_looks_twice();
    (void)look(3);
}
static void step_first() { (void)step(); }
static void engine_steps() { (void)step(); }
static void rank_looks_at_one() { (void)look(1); }

/* ---- a proxy that was fenced --------------------------------------------------------- */

static void engine_fails_and_goes_on()
{
    expire();
    if (step() != 0) {
        expire();
        (void)step();
    }
}
static void proxy_takes_late_sweeps()
{
    uint64_t mine = take();
    if (mine == 0)
        return;
    answer(mine);
    if (pp3_sweep(own(), &mine, 1) == 1)
        (void)publish(mine);
    else
        happened(SWEPT);
}

/* ---- failing -------------------------------------------------------------------------- */

static void rank_fails_late()
{
    uint64_t word = pp3_fail(own(), 1, PP3_EXPIRED);
    if (pp3_ticket(word) == 1)
        read_reply(word);
}
static void watchdog_expires() { expire(); }

/* A round's page came back once already, and is now another round's. */
static void given_back_first()
{
    uint64_t mine = 0;
    (void)step();
    (void)pp3_take(&w.end[PROXY_A], &mine);
    expire();
    (void)pp3_publish(&w.end[PROXY_A], mine);
    (void)step();
    expect(pp3_page_of(w.claimed[0]) == pp3_page_of(mine), "another page");
}

/* Its round is over and released; it fails it all the same. */
static void rank_fails_too_late()
{
    if (look(1))
        (void)pp3_fail(own(), 1, PP3_EXPIRED);
}
static void nothing_failed()
{
    expect(pp3_state(PP3_LOAD(&w.entries[0].state, relaxed)) < PP3_FAILED,
           "a round failed by mistake");
}

/* ---- two ranks ------------------------------------------------------------------------ */

static void answered_first()
{
    (void)step();
    uint64_t mine = 0;
    (void)pp3_take(&w.end[PROXY_A], &mine);
    put(pp3_page(&w.end[PROXY_A], mine), mine);
    (void)pp3_publish(&w.end[PROXY_A], mine);
}

/* ---- cancel ---------------------------------------------------------------------------- */

static void engine_cancels()
{
    expect(pp3_cancel(own(), 1) == 0, "cancel's error");
    expect(step() != 0, "a claim that waits for those who were told nothing");
}

/* ---- kills ------------------------------------------------------------------------------ */

static void engine_sees_the_dead()
{
    for (uint32_t id = 1; id <= 2; id++)
        if (scene->act[id] && (planted(DEAD_BY_DECREE) || PP3_GONE((int)id)))
            (void)pp3_owner_gone(own(), id);
}
static void engine_after_kills()
{
    expire();
    if (claim() == 0)
        return;
    expire();
    engine_sees_the_dead();
    (void)step();
}
static void engine_buries()
{
    engine_sees_the_dead();
    (void)step();
}
static void engine_steps_expires_steps()
{
    expire();
    if (step() != 0)
        (void)step();
}

/* ---- sleeping ---------------------------------------------------------------------------- */

static uint64_t taken;
static void taken_first()
{
    (void)step();
    (void)pp3_take(&w.end[PROXY_A], &taken);
}
static void proxy_publishes()
{
    answer(taken);
    (void)publish(taken);
}
static void rank_waits() { wait_for(1); }
static void rank_waits_for_two() { wait_for(2); }

static bool proxy_asleep;
static void nobody_asleep() { proxy_asleep = false; }
static void proxy_sleeps()
{
    pp3_work_prepare(own());
    if (pp3_work_pending(own()))
        serve();
    else
        proxy_asleep = true;
}
static void proxy_was_rung()
{
    expect(!proxy_asleep || work_rings != 0 ||
               PP3_LOAD(&w.entries[0].bell, relaxed) == 0,
           "a lost bell");
}

static uint64_t watchdog_until;
static void watchdog_awake() { watchdog_until = 0; }
static void watchdog_looks_and_sleeps()
{
    watchdog_until = pp3_watch_look(own(), 0);
    pp3_watch_sleeps(own(), watchdog_until);
}
static void watchdog_was_nudged()
{
    uint64_t word = PP3_LOAD(&w.entries[0].state, relaxed);
    expect(pp3_ticket(word) != 1 || nudges != 0 || watchdog_until <= SOON,
           "a lost nudge");
}

/* ---- owner ids ---------------------------------------------------------------------------- */

/* Round 1 was failed while the first proxy wrote: its page goes to quarantine. */
static void fenced_first()
{
    (void)step();
    (void)pp3_take(&w.end[PROXY_A], &taken);
    expire();
    PP3_STORE(&w.engine.owner[2].life, PP3_LIVING, relaxed);
    PP3_STORE(&w.engine.owner[3].life, PP3_LIVING, relaxed);
}
/* The second round is fenced too, in another owner's hands: the third needs the page
 * of the first, which comes back by its owner's death. */
static void engine_claims_twice()
{
    uint64_t mine;
    if (step() == 0)
        return;
    expect(pp3_take(&w.end[PROXY_B], &mine) == 1, "take");
    expire();
    if (claim() == 0)
        (void)claim();
}
/* Nobody wakes whom a killed proxy did not, before it is seen dead. */
static void watchdog_buries()
{
    if (PP3_GONE(PROXY_A))
        (void)pp3_owner_gone(own(), 1);
    else
        actors[PROXY_A].unburied = true;
}
static int new_owner;
static void watchdog_buries_and_adds()
{
    (void)pp3_owner_gone(own(), 1);
    new_owner = pp3_owner_add(own());
}
static void no_owner_yet()
{
    new_owner = 0;
    fenced_first();
}

/* Another thread of the engine's wants an owner while the watchdog buries one. */
static void others_live()
{
    new_owner = 0;
    (void)step();
    PP3_STORE(&w.engine.owner[3].life, PP3_LIVING, relaxed);
}
static void proxy_takes() { (void)take(); }
static void thread_adds_owner() { new_owner = pp3_owner_add(own()); }
static void engine_expires_and_steps_twice()
{
    expire();
    (void)step();
    (void)step();
}
static void watchdog_buries_rank() { (void)pp3_rank_gone(&w.engine, 0); }

/* The round of this moment has a deadline far away; that of the one before is over. */
static void engine_claims_for_long() { (void)claim(100 * SOON); }
static void nobody_named_anew()
{
    for (uint32_t i = 0; new_owner > 0 && i < w.engine.held_count; i++)
        expect(w.engine.quarantine[i].owner != (uint32_t)new_owner,
               "a new owner with a page in quarantine");
    for (uint32_t e = 0; new_owner > 0 && e < scene->rounds; e++)
        expect(pp3_owner_of(PP3_LOAD(&w.entries[e].state, relaxed)) !=
                   (uint32_t)new_owner,
               "a new owner named by a word");
}

/* ---- slots and the note --------------------------------------------------------------------- */

static const int32_t FIRST[2] = {11, 12}, SECOND[2] = {21, 22};
static void slot_first() { (void)pp3_slot_reset(own(), 0, 1, FIRST, 1); }
static void engine_writes_slot()
{
    expect(pp3_slot_append(own(), 0, FIRST + 1, 1) == 0, "append");
    expect(pp3_slot_reset(own(), 0, 2, SECOND, 2) == 0, "reset");
}
static void engine_closes_slot()
{
    expect(pp3_slot_reset(own(), 0, 2, SECOND, 2) == 0, "reset");
    expect(pp3_slot_close(own(), 0) == 0, "close");
}
static void proxy_reads_slot()
{
    int32_t out[TOKENS] = {0, 0};
    uint32_t generation, live;
    uint64_t length;
    int error = pp3_slot_read(own(), 0, out, TOKENS, &generation, &live, &length);
    if (error == -EAGAIN)
        return;
    expect(error == 0 && (generation == 1 || generation == 2), "the slot's generation");
    const int32_t *want = generation == 1 ? FIRST : SECOND;
    expect(generation == 1 ? live == 1 && length >= 1 : length == 2, "a mixed slot");
    expect(out[0] == want[0] && (length < 2 || out[1] == want[1]), "a torn slot");
}

static void write_note(uint8_t with)
{
    uint8_t bytes[8 * PP3_NOTE_WORDS];
    memset(bytes, with, sizeof bytes);
    expect(pp3_note_write(own(), bytes, with == 1 ? 8 : 16) == 0, "note");
    PP3_STEP(0);
}
static void note_first() { write_note(1); }
static void proxy_writes_note() { write_note(2); }
static void proxy_follows_with_note()
{
    if (PP3_GONE(PROXY_A))
        write_note(1);
}
static void rank_reads_note()
{
    uint8_t out[8 * PP3_NOTE_WORDS] = {0};
    int n = pp3_note_read(own(), out);
    if (n == -EAGAIN)
        return;
    expect(n == 8 || n == 16, "the note's length");
    for (int i = 0; i < n; i++)
        expect(out[i] == (n == 8 ? 1 : 2), "a torn note");
}

/* ---- the table ------------------------------------------------------------------------------ */

#define BIT(role) (1u << (role))

#define EV(event) (1u << (event))

static const Scene SCENES[] = {
    /* name, entries, pages, ranks, before;
     * engine, proxy A, proxy B, rank A, rank B, watchdog;
     * after, mortal, late, sleepers, what has to happen */
    {"round", 1, 1, 1, 0,
     {engine_steps, serve, 0, rank_looks_at_one, 0, 0},
     goes_on, 0, 0, false, EV(REPLY),
     "claim, bell, take, publish, read, release"},
    {"next", 1, 1, 1, answered_first,
     {engine_steps, serve, 0, rank_looks_twice, 0, 0},
     goes_on, 0, 0, false, EV(REPLY) | EV(REFUSED),
     "release, then the next claim of the same page"},
    {"laps", 1, 1, 1, 0,
     {engine_two_rounds, proxy_twice, 0, rank_looks_twice, 0, 0},
     goes_on, 0, 0, false, EV(REPLY) | EV(REFUSED),
     "two whole laps over one page"},
    {"entries", 2, 2, 1, 0,
     {engine_three_rounds, proxy_thrice, 0, rank_looks_thrice, 0, 0},
     goes_on, 0, 0, false, EV(REPLY) | EV(REFUSED),
     "three rounds over two entries"},
    {"ranks", 1, 1, 2, answered_first,
     {engine_steps, serve, 0, rank_looks_at_one, rank_looks_at_one, 0},
     goes_on, 0, 0, false, EV(REPLY) | EV(REFUSED),
     "a page is reused after both ranks have released it"},
    {"nobody", 1, 1, 0, step_first,
     {engine_steps, serve, serve, 0, 0, 0},
     goes_on, 0, 0, false, EV(REFUSED),
     "no rank acknowledges: publish, then the next writer"},
    {"fenced", 1, 2, 0, step_first,
     {engine_fails_and_goes_on, serve, 0, 0, 0, 0},
     goes_on, 0, 0, false, EV(FENCED) | EV(QUARANTINE),
     "a late proxy: quarantine, give back, reuse"},
    {"successor", 1, 2, 0, step_first,
     {engine_fails_and_goes_on, serve, serve, 0, 0, 0},
     goes_on, 0, 0, false, EV(FENCED) | EV(QUARANTINE) | EV(RECLAIMED) | EV(REFUSED),
     "a late proxy and its successor"},
    {"sweep", 1, 2, 0, step_first,
     {engine_fails_and_goes_on, proxy_takes_late_sweeps, serve, 0, 0, 0},
     goes_on, 0, 0, false, EV(SWEPT) | EV(QUARANTINE) | EV(RECLAIMED),
     "a late proxy that never publishes gives back by its sweep"},
    {"fail", 1, 2, 2, step_first,
     {0, serve, 0, rank_fails_late, rank_looks_at_one, watchdog_expires},
     goes_on, 0, 0, false, EV(REPLY) | EV(FAILURE) | EV(FENCED),
     "publish against a waiter and the watchdog: one outcome"},
    {"fresh", 1, 1, 1, 0,
     {engine_steps, serve, 0, rank_fails_late, 0, watchdog_expires},
     goes_on, 0, 0, false, EV(REPLY) | EV(FAILURE),
     "the failed buffers of a round claimed at that moment"},
    {"again", 1, 2, 0, given_back_first,
     {engine_fails_and_goes_on, serve, 0, 0, 0, 0},
     goes_on, 0, 0, false, EV(FENCED) | EV(QUARANTINE),
     "a page that was given back once is fenced again"},
    {"stale", 1, 1, 1, answered_first,
     {engine_steps, serve, 0, rank_fails_too_late, 0, 0},
     nothing_failed, 0, 0, false, EV(REPLY),
     "whoever fails a round that is over fails no other"},
    {"cancel", 1, 2, 1, step_first,
     {engine_cancels, serve, 0, 0, 0, 0},
     goes_on, 0, 0, false, EV(FENCED) | EV(QUARANTINE),
     "a round told to nobody ends and is claimed again unacknowledged"},
    {"cancel two", 1, 2, 1, step_first,
     {engine_cancels, serve, serve, 0, 0, 0},
     goes_on, 0, 0, false, EV(FENCED) | EV(QUARANTINE),
     "the same beside a second proxy"},
    {"wake", 1, 1, 1, taken_first,
     {0, proxy_publishes, 0, rank_waits, 0, 0},
     goes_on, 0, 0, true, EV(REPLY) | EV(SLEEP),
     "one sleeper, one resolver"},
    {"wakes", 1, 1, 1, taken_first,
     {0, proxy_publishes, 0, rank_waits, 0, watchdog_expires},
     goes_on, 0, 0, true, EV(REPLY) | EV(FAILURE) | EV(SLEEP),
     "one sleeper, two resolvers"},
    {"helper", 1, 1, 2, taken_first,
     {0, proxy_publishes, 0, rank_waits, rank_waits, 0},
     goes_on, 0, BIT(RANK_A), true, EV(REPLY) | EV(FAILURE) | EV(SLEEP) | EV(FENCED),
     "a waiter past the deadline resolves, another sleeps"},
    {"bell", 1, 1, 1, nobody_asleep,
     {engine_steps, proxy_sleeps, 0, 0, 0, 0},
     proxy_was_rung, 0, 0, true, 0,
     "a proxy that sleeps for work against submit"},
    {"nudge", 1, 1, 1, watchdog_awake,
     {engine_steps, 0, 0, 0, 0, watchdog_looks_and_sleeps},
     watchdog_was_nudged, 0, 0, true, 0,
     "the watchdog going to sleep against a claim"},
    {"killed", 1, 2, 0, step_first,
     {engine_after_kills, serve, 0, 0, 0, 0},
     goes_on, BIT(PROXY_A), 0, false, EV(DEATH) | EV(QUARANTINE) | EV(FENCED),
     "a proxy killed at any crash point"},
    {"killed two", 1, 2, 0, step_first,
     {engine_after_kills, serve, serve, 0, 0, 0},
     goes_on, BIT(PROXY_A) | BIT(PROXY_B), 0, false, EV(DEATH) | EV(QUARANTINE),
     "two proxies, each killed at any crash point"},
    {"rank killed", 1, 1, 2, answered_first,
     {engine_steps, serve, 0, rank_looks_at_one, rank_looks_at_one, 0},
     goes_on, BIT(RANK_A) | BIT(RANK_B), 0, false, EV(DEATH) | EV(REPLY) | EV(REFUSED),
     "ranks killed at any crash point: the page comes back once they are known dead"},
    {"orphan", 1, 1, 1, step_first,
     {engine_buries, serve, 0, rank_looks_at_one, 0, 0},
     goes_on, BIT(PROXY_A), 0, false, EV(DEATH) | EV(REPLY) | EV(FAILURE),
     "a proxy killed, its round failed as orphaned, its page reused"},
    {"orphan wakes", 1, 1, 1, taken_first,
     {0, proxy_publishes, 0, rank_waits, 0, watchdog_buries},
     0, BIT(PROXY_A), 0, true, EV(DEATH) | EV(REPLY) | EV(FAILURE) | EV(SLEEP),
     "a proxy killed before its wake: the watchdog wakes everybody"},
    {"owner", 1, 2, 0, no_owner_yet,
     {engine_claims_twice, 0, 0, 0, 0, watchdog_buries_and_adds},
     nobody_named_anew, 0, 0, false, EV(QUARANTINE) | EV(RECLAIMED),
     "an owner's id is given again only when nothing names it"},
    {"owner thread", 1, 1, 0, others_live,
     {0, proxy_takes, 0, 0, thread_adds_owner, watchdog_buries},
     nobody_named_anew, BIT(PROXY_A), 0, false, EV(DEATH),
     "a thread wants an owner's id while the watchdog buries its holder"},
    {"buried", 1, 1, 0, step_first,
     {engine_expires_and_steps_twice, serve, 0, 0, 0, watchdog_buries},
     goes_on, BIT(PROXY_A), 0, false, EV(DEATH) | EV(QUARANTINE) | EV(RECLAIMED),
     "a page comes back by a death that the watchdog saw"},
    {"rank buried", 1, 1, 1, answered_first,
     {engine_steps, serve, 0, rank_looks_at_one, 0, watchdog_buries_rank},
     goes_on, BIT(RANK_A), 0, false, EV(DEATH) | EV(REPLY) | EV(REFUSED),
     "a page comes back by a rank's death that the watchdog saw"},
    {"early", 1, 1, 0, answered_first,
     {engine_claims_for_long, 0, 0, 0, rank_waits_for_two, watchdog_expires},
     nothing_failed, 0, 0, true, 0,
     "a new round is not failed by the deadline of the one before"},
    {"slot", 1, 1, 1, slot_first,
     {engine_writes_slot, proxy_reads_slot, 0, 0, 0, 0},
     0, 0, 0, false, 0,
     "a slot read against append and reset"},
    {"slot closed", 1, 1, 1, slot_first,
     {engine_closes_slot, proxy_reads_slot, 0, 0, 0, 0},
     0, 0, 0, false, 0,
     "a slot read against reset and close"},
    {"note", 1, 1, 1, note_first,
     {0, proxy_writes_note, proxy_follows_with_note, rank_reads_note, 0, 0},
     0, BIT(PROXY_A), 0, false, EV(DEATH),
     "the note read while its writer is killed and a successor writes"},
};

static const int SCENE_COUNT = (int)(sizeof SCENES / sizeof *SCENES);

/* ---- searching -------------------------------------------------------------------------------- */

static rl::iteration_t executions, most;

template <int N> struct Suite : rl::test_suite<Suite<N>, N> {
    void before()
    {
        if (most != 0 && executions >= most)
            rl::ctx().rl_until("enough", $);
        executions++;
        make_world();
    }
    void thread(unsigned i)
    {
        bool died = false;
        try {
            scene->act[roles[i]]();
        } catch (const killed &) {
            died = true;
        } catch (const asleep &) {
            happened(SLEEP);
        }
        actors[roles[i]].was_killed = died;
        if (died) {
            happened(DEATH);
            PP3_STORE(&w.dead[roles[i]], 1, release);
        }
    }
    void after() { end_of_execution(); }
};

struct Found {
    rl::test_result_e result;
    std::string history;
};

template <int N> static rl::test_result_e once(rl::test_params &p, rl::ostringstream &at,
                                               bool second)
{
    again = false;
    executions = 0;
    memset(events, 0, sizeof events);
    quiet_time = false;
    if (p.search_type == rl::sched_full)
        return rl::run_test<Suite<N>, rl::full_search_scheduler<N> >(p, at, second);
    return rl::run_test<Suite<N>, rl::random_scheduler<N> >(p, at, second);
}

template <int N> static rl::test_result_e search(rl::test_params &p)
{
    std::string start(p.initial_state.c_str());
    for (;;) {
        rl::ostringstream at;
        p.initial_state = start.c_str();
        rl::test_result_e result = once<N>(p, at, false);
        if (again)
            continue;
        if (result != rl::test_result_success && getenv("PP3_HISTORY") &&
            result != rl::test_result_until_condition_hit) {
            rl::ostringstream unused;
            rl::iteration_t n = executions;
            p.initial_state = at.str();
            p.collect_history = true;
            p.output_stream = &std::cerr;
            most = 0;
            (void)once<N>(p, unused, true);
            executions = n;
        }
        return result;
    }
}

static rl::test_result_e search_scene(rl::test_params &p)
{
    int n = scene->actors();
    for (int role = 0, i = 0; role < ACTORS; role++)
        if (scene->act[role])
            roles[i++] = role;
    memset(fates, 0, sizeof fates);
    live_count = 0;
    mortal = scene->mortal;
    fences = scene->sleepers;
    sleeps_cut_short = scene->sleepers && scene->actors() == 2;
    for (int role = 0; role < ACTORS; role++)
        late[role] = (scene->late & BIT(role)) != 0;
    return n == 2   ? search<2>(p)
           : n == 3 ? search<3>(p)
           : n == 4 ? search<4>(p)
                    : search<5>(p);
}

static rl::memory_order order_named(const char *name)
{
    return !strcmp(name, "acquire")   ? rl::mo_acquire
           : !strcmp(name, "release") ? rl::mo_release
           : !strcmp(name, "acq_rel") ? rl::mo_acq_rel
                                      : rl::mo_relaxed;
}

int main(int argc, char **argv)
{
    std::ostringstream nowhere;
    rl::test_params p;
    unsigned long long first = 1;

    if (argc < 3) {
        for (int i = 0; i < SCENE_COUNT; i++)
            printf("%s|%u entries, %u pages, %u ranks|%s\n", SCENES[i].name,
                   SCENES[i].rounds, SCENES[i].pages, SCENES[i].ranks, SCENES[i].about);
        return argc == 1 ? 0 : 2;
    }
    for (int i = 0; i < SCENE_COUNT; i++)
        if (strcmp(SCENES[i].name, argv[1]) == 0)
            scene = &SCENES[i];
    if (!scene)
        return 2;
    p.progress_stream = &nowhere;
    p.output_stream = &nowhere;
    p.output_history = false;
    p.collect_history = false;
    p.execution_depth_limit = 100000;
    bool full = strcmp(argv[2], "full") == 0;
    int i = 3;
    unsigned long long count = i < argc && argv[i][0] >= '0' && argv[i][0] <= '9'
                                   ? strtoull(argv[i++], 0, 10) : 0;
    if (i < argc && argv[i][0] >= '0' && argv[i][0] <= '9')
        first = strtoull(argv[i++], 0, 10);
    if (i + 1 < argc && strcmp(argv[i], "fault") == 0) {
        planted_fault = atoi(argv[i + 1]);
    } else if (i + 2 < argc && strcmp(argv[i], "order") == 0) {
        planted_site = atoi(argv[i + 1]);
        planted_order = order_named(argv[i + 2]);
    }
    char start[64];
    snprintf(start, sizeof start, "%llu ", first);
    most = full ? count : 0;
    p.search_type = full ? rl::sched_full : rl::sched_random;
    p.iteration_count = full ? 0 : first + count - 1;
    p.initial_state = full ? "" : start;
    rl::test_result_e result = search_scene(p);
    bool whole = result == rl::test_result_success, right = whole;
    const char *outcome = whole ? full ? "complete" : "random"
                          : said ? said : result == rl::test_result_data_race
                                 ? "a data race" : rl::test_result_str(result);
    if (result == rl::test_result_until_condition_hit)
        outcome = "capped";
    printf("%s|%s|%llu|%s|", scene->name, full ? "full" : "random",
           (unsigned long long)executions, outcome);
    for (int e = 0; e < EVENTS; e++)
        if (events[e] != 0)
            printf("%s %llu ", EVENT_NAMES[e], events[e]);
    for (int e = 0; e < EVENTS; e++)
        if (whole && events[e] == 0 && (scene->events & EV(e)) != 0) {
            printf("never %s ", EVENT_NAMES[e]);
            right = false;
        }
    printf("\n");
    return right || result == rl::test_result_until_condition_hit ? 0 : 1;
}
