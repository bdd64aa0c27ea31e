/* The ring's protocol for Spin: what has to happen at last, whoever dies or stops.
 *
 * The order of memory is not looked at here (Relacy and the litmus shapes do), nor are
 * bytes; every step of another process may come between two touches of shared words.
 * Each touch names its place in the ring's text, as `pp3_take: CAS state`; a test holds
 * the two against each other, both ways. Which changes of a state word there are is
 * table.pml, made from the table in ring.h: any other change is an error here, and a
 * change of the table that no run makes is one too.
 *
 * A refused claim is tried again; a sleep in slices ends when there is something to see.
 * Both are guards here: the loops between have no other effect. A process dies or stops
 * between any two steps.
 */
#include "table.pml"

#define ROUNDS_MOST 2
#define PAGES_MOST 4
#define RANKS_MOST 2
#define OWNERS_MOST 4
#define MORTALS (OWNERS_MOST + 1 + RANKS_MOST) /* 0 is who never dies, then owners */
#define RANK_ID(k) (OWNERS_MOST + 1 + (k))

/* ticket | state:3 | page:2 | owner:3 */
#define WORD(t, s, p, o) (((t) << 8) | ((s) << 5) | ((p) << 3) | (o))
#define TICKET(w) ((w) >> 8)
#define STATE(w) (((w) >> 5) & 7)
#define PAGE(w) (((w) >> 3) & 3)
#define OWNER(w) ((w) & 7)
#define RESOLVED(w) (STATE(w) >= PUBLISHED)
#define OPEN(w) (STATE(w) == CLAIMED || STATE(w) == WRITING)
#define ACK(k, e) ack[(k) * ROUNDS_MOST + (e)]

/* The configuration, and planted faults: set before anything runs. */
byte rounds, pages, ranks, owners, last, kills, stops, rank_kills;
bool watched, helped, sliced, wakes, cancels, refusals, unanswered;
bool kill_stopped, quarantined, swept, beside;

/* Shared words. */
short state[ROUNDS_MOST];
byte bell[ROUNDS_MOST];
bool late[ROUNDS_MOST]; /* the deadline in the entry is over */
byte seq[ROUNDS_MOST], waiters[ROUNDS_MOST], work_waiters;
bool work_rung;
byte give[PAGES_MOST];
byte ack[RANKS_MOST * ROUNDS_MOST];
byte page[PAGES_MOST]; /* the ticket whose reply stands there; 255: being written */

/* Of the engine's process. */
byte claimed_page[ROUNDS_MOST], free_pages, held_ticket[PAGES_MOST], held_owner[PAGES_MOST];
bool untold[ROUNDS_MOST], buried[OWNERS_MOST + 1];
byte told; /* the ranks know of every ticket up to it */
bool engine_done;

/* Of the kernel. */
bool halted[MORTALS]; /* killed or stopped: does nothing more */
bool gone[MORTALS];   /* its pidfd is readable */
byte sleeps_on[RANKS_MOST]; /* entry + 1 */

bool waiting[RANKS_MOST];

/* Each step of a process is one atomic block with one touch of what others change (or a
 * few, where what is waited for stays so); whoever was halted takes none. */
#define ALIVE if :: halted[me] -> goto out :: else fi

/* ---- shared by all ---------------------------------------------------------------- */

inline futex_wake(e)
{
    k = 0;
    do
    :: k < ranks -> if :: sleeps_on[k] == e + 1 -> sleeps_on[k] = 0 :: else fi; k++
    :: else -> break
    od;
    k = 0
}

/* pp3_woke: FENCE */
/* A sleep in slices ends without a wake, which is then left out. */
#define TO_WAKE(e) (!sliced && waiters[e] != 0 && wakes) /* pp3_woke: LOAD waiters */

#define RAISE(e) seq[e] = (seq[e] + 1) % 4

inline raise(e)
{
    atomic { ALIVE; RAISE(e) }; /* pp3_woke: ADD seq */
    atomic { ALIVE; futex_wake(e) }
}


/* Leaves in `w` what the round ended with. */
inline fail(t, status, verb)
{
    atomic { ALIVE; w = state[(t) % rounds] }; /* pp3_fail: LOAD state */
    do
    :: atomic { !won && TICKET(w) == t && !RESOLVED(w) ->
            ALIVE;
            if
            :: state[(t) % rounds] == w -> /* pp3_fail: CAS state */
                moved(STATE(w), status, verb);
                w = WORD(t, status, PAGE(w), OWNER(w));
                state[(t) % rounds] = w;
                won = true
            :: else -> w = state[(t) % rounds]
            fi
        }
    :: atomic { won && TO_WAKE((t) % rounds) -> ALIVE; won = false }; raise((t) % rounds)
    :: atomic { won && !TO_WAKE((t) % rounds) -> won = false }
    :: !won && (TICKET(w) != t || RESOLVED(w)) -> break
    od
}

/* ---- the engine ------------------------------------------------------------------- */

#define CAME_BACK(p, t, o) \
    (give[p] == (t) /* pp3_came_back: LOAD give */ || \
     buried[o] /* pp3_came_back: LOAD life */)
#define BACK(p) (held_owner[p] != 0 && CAME_BACK(p, held_ticket[p], held_owner[p]))

inline dispose(e)
{
    if
    :: STATE(w) != PUBLISHED && OWNER(w) != 0 && quarantined &&
       !CAME_BACK(claimed_page[e], TICKET(w), OWNER(w)) ->
        held_ticket[claimed_page[e]] = TICKET(w);
        held_owner[claimed_page[e]] = OWNER(w) /* pp3_dispose: ADD held */
    :: else -> free_pages = free_pages | (1 << claimed_page[e])
    fi
}

inline reclaim()
{
    p = 0;
    do
    :: p < pages ->
        if
        :: BACK(p) ->
            held_owner[p] = 0; /* pp3_reclaim: ADD held */
            held_ticket[p] = 0;
            free_pages = free_pages | (1 << p)
        :: else
        fi;
        p++
    :: else -> break
    od;
    p = 0
}

inline pop()
{
    p = 0;
    do
    :: (free_pages & (1 << p)) -> break
    :: else -> p++
    od;
    free_pages = free_pages & (255 - (1 << p))
}

inline cancel(t)
{
    fail(t, CANCELLED, CANCEL);
    atomic { untold[e] = true; told = t; t++; w = 0 }
}

#define ACKED(k) (k >= ranks || ACK(k, e) >= TICKET(w) || gone[RANK_ID(k)])
/* pp3_acknowledged: LOAD acks, pp3_rank_gone: LOAD life, pp3_rank_gone: STORE life */

proctype engine()
{
    byte t = 1, n, e, p, k, me;
    short w;
    bool won;

    n = last;
    do
    :: t <= n ->
        atomic { /* else -EAGAIN */
            (RESOLVED(state[t % rounds]) || state[t % rounds] == 0);
            e = t % rounds;
            w = state[e] /* pp3_consumed: LOAD state */
        };
        atomic { /* else -EBUSY */
            (w == 0 || untold[e] || ACKED(0) && ACKED(1));
            if :: w != 0 -> dispose(e) :: else fi;
            w = 0
        };
        atomic { /* else -ENOBUFS */
            (free_pages != 0 || BACK(0) || BACK(1) || BACK(2) || BACK(3));
            if :: free_pages == 0 -> reclaim() :: else fi;
            pop();
            late[e] = false; /* pp3_claim: STORE deadline_ns */
            claimed_page[e] = p;
            p = 0
        };
        atomic {
            moved(STATE(state[e]), CLAIMED, CLAIM);
            state[e] = WORD(t, CLAIMED, claimed_page[e], 0); /* pp3_claim: STORE state */
            untold[e] = false
        };
        if
        :: cancels -> cancel(t)
        :: atomic { bell[e] = t }; /* pp3_submit: STORE bell */
            if
            :: atomic { /* pp3_submit: FENCE */
                    work_rung = work_rung || work_waiters != 0; /* pp3_submit: LOAD work_waiters, pp3_submit: ADD work_seq */
                    told = t;
                    t++
                }
            :: cancels -> cancel(t)
            fi
        fi
    :: else -> break
    od;
    (!OPEN(state[0]) && !OPEN(state[1]));
    engine_done = true;
out: atomic { t = 0; n = 0; e = 0; p = 0; w = 0 }
}

/* ---- a proxy ---------------------------------------------------------------------- */

#define NEXT state[(c + 1) % rounds]
#define FOUND (TICKET(NEXT) > c + 1 || \
               TICKET(NEXT) == c + 1 && (STATE(NEXT) != CLAIMED || bell[(c + 1) % rounds] == c + 1))

inline give_back()
{
    atomic { ALIVE; give[PAGE(mine)] = TICKET(mine); mine = 0; how = 0; w = 0; x = 0 } /* pp3_give_back: STORE give */
}

proctype proxy(byte me)
{
    byte c, k, x, how;
    short w, mine;
    bool won;

end:
    do
    :: atomic { how == 0 && w == 0 && (FOUND || halted[me]) ->
            ALIVE;
            w = NEXT; /* pp3_next: LOAD state, pp3_next: LOAD bell */
            if
            :: TICKET(w) > c + 1 -> c = TICKET(w) - rounds; w = 0
            :: TICKET(w) == c + 1 && STATE(w) != CLAIMED -> c++; w = 0
            :: else
            fi
        }
    :: atomic { how == 0 && w != 0 ->
            ALIVE;
            if
            :: state[TICKET(w) % rounds] == w -> /* pp3_take: CAS state */
                mine = WORD(TICKET(w), WRITING, PAGE(w), me);
                state[TICKET(w) % rounds] = mine;
                moved(CLAIMED, WRITING, TAKE);
                c++;
                how = 1
            :: else
            fi;
            w = 0
        }
    :: atomic { how == 0 && !sliced && !FOUND -> /* without slices its bell alone wakes it */
            ALIVE;
            work_waiters++ /* pp3_work_prepare: ADD work_waiters, pp3_work_prepare: FENCE */
        };
end2:   atomic { (FOUND || work_rung || halted[me]); ALIVE; if :: FOUND :: else -> work_rung = false fi };
        atomic { ALIVE; work_waiters-- }
    :: atomic { how == 1 ->
            ALIVE;
            page[PAGE(mine)] = 255;
            how = 2
        };
        atomic {
            ALIVE;
            page[PAGE(mine)] = TICKET(mine);
            if
            :: how = 3
            :: unanswered -> how = 4
            :: refusals -> how = 5
            fi
        }
    :: atomic { how == 3 && w == 0 ->
            ALIVE;
            if
            :: state[TICKET(mine) % rounds] == mine -> /* pp3_publish: CAS state */
                state[TICKET(mine) % rounds] = WORD(TICKET(mine), PUBLISHED, PAGE(mine), me);
                moved(WRITING, PUBLISHED, PUBLISH);
                w = 1
            :: else -> w = 2
            fi
        }
    :: atomic { how == 3 && w == 1 && TO_WAKE(TICKET(mine) % rounds) -> ALIVE; w = 3 };
        raise(TICKET(mine) % rounds)
    :: atomic { how == 3 && (w == 3 || w == 1 && !TO_WAKE(TICKET(mine) % rounds)) -> mine = 0; how = 0; w = 0 }
    :: how == 3 && w == 2 -> give_back()
    :: atomic { how == 4 && (state[TICKET(mine) % rounds] != mine || halted[me]) -> /* pp3_sweep: LOAD state */
            ALIVE; /* its reply never came: the sweep of a later turn */
            how = 6
        };
        if :: swept -> give_back() :: else -> how = 0; mine = 0 fi
    :: how == 5 -> /* its request was none */
        x = TICKET(mine);
        fail(x, CANCELLED, RESOLVE);
        give_back()
    od;
out: atomic { c = 0; k = 0; x = 0; how = 0; w = 0; mine = 0; won = false } /* Spin keeps them */
}

/* ---- a rank ----------------------------------------------------------------------- */

#define HERE state[t % rounds]

proctype rank(byte number)
{
    byte t = 1, n, s, k, me;
    short w;
    bool won;

    atomic { n = last; me = RANK_ID(number) };
    do
    :: t <= n ->
        atomic {
            (told >= t || halted[me]);
            ALIVE;
            if
            :: untold[t % rounds] || TICKET(HERE) != t -> goto next /* it was not told */
            :: else -> waiting[number] = true; w = HERE /* pp3_spin: LOAD state */
            fi
        };
        if
        :: RESOLVED(w)
        :: !RESOLVED(w) && sliced ->
            atomic {
                (RESOLVED(HERE) || late[t % rounds] && helped || halted[me]);
                ALIVE;
                w = HERE
            };
            if :: RESOLVED(w) :: else -> fail(t, EXPIRED, RESOLVE) fi
        :: !RESOLVED(w) && !sliced -> /* its wake alone wakes it */
            atomic { ALIVE; waiters[t % rounds]++ }; /* pp3_wait: ADD waiters, pp3_wait: FENCE */
            do
            :: !RESOLVED(w) ->
                atomic { ALIVE; s = seq[t % rounds] }; /* pp3_sleep: LOAD seq */
                atomic { ALIVE; w = HERE; assert(TICKET(w) == t) }; /* pp3_sleep: LOAD state */
                if
                :: RESOLVED(w)
                :: else ->
                    if
                    :: atomic { late[t % rounds] && helped -> ALIVE; s = 0 }; /* pp3_sleep: LOAD deadline_ns */
                        fail(t, EXPIRED, RESOLVE)
                    :: atomic { !(late[t % rounds] && helped) ->
                            ALIVE;
                            if :: seq[t % rounds] == s -> sleeps_on[number] = t % rounds + 1 :: else fi;
                            s = 0;
                            w = 0
                        };
                        atomic {
                            (sleeps_on[number] == 0 || halted[me]);
                            ALIVE;
                            sleeps_on[number] = 0
                        }
                    fi
                fi
            :: else -> break
            od;
            atomic { ALIVE; s = 0; waiters[t % rounds]-- } /* pp3_wait: ADD waiters 2 */
        fi;
        atomic { ALIVE; waiting[number] = false; assert(STATE(w) != PUBLISHED || page[PAGE(w)] == t) };
        atomic {
            ALIVE;
            assert(STATE(w) != PUBLISHED || page[PAGE(w)] == t);
            assert(HERE == w); /* one outcome, for ever */
            ACK(number, t % rounds) = t; /* pp3_release: STORE ack */
next:       t++;
            w = 0
        }
    :: else -> break
    od;
out: atomic { t = 0; n = 0; s = 0; k = 0; w = 0; won = false }
}

/* ---- who watches ------------------------------------------------------------------ */

inline owner_gone(i)
{
    atomic { if :: !buried[i] -> buried[i] = true; first = true :: else fi }; /* pp3_owner_gone: CAS life */
    if
    :: first ->
        first = false;
        do
        :: e < rounds ->
            atomic { w = state[e] }; /* pp3_owner_gone: LOAD state */
            if
            :: STATE(w) == WRITING && OWNER(w) == i -> x = TICKET(w); fail(x, ORPHANED, RESOLVE)
            :: else
            fi;
            atomic { w = 0; x = 0; e++ }
        :: else -> break
        od;
        e = 0;
        do
        :: !sliced && e < rounds ->
            atomic { RAISE(e) }; /* pp3_wake_all: ADD seq */
            atomic { futex_wake(e); e++ }
        :: else -> break
        od;
        e = 0
    :: else
    fi
}

#define OVER(e) (OPEN(state[e]) && late[e])

proctype watchdog()
{
    byte e, k, x, me, id;
    short w;
    bool won, first;

end:
    do
    :: atomic { OVER(0) || OVER(1) -> e = (OVER(0) -> 0 : 1); w = state[e] }; /* pp3_expire: LOAD state */
        if
        :: late[e] -> x = TICKET(w); fail(x, EXPIRED, RESOLVE) /* pp3_expire: LOAD deadline_ns */
        :: else
        fi;
        atomic { w = 0; e = 0; x = 0 }
    :: atomic { gone[1] && !buried[1] -> id = 1 }; owner_gone(id); id = 0
    :: atomic { gone[2] && !buried[2] -> id = 2 }; owner_gone(id); id = 0
    :: atomic { gone[3] && !buried[3] -> id = 3 }; owner_gone(id); id = 0
    :: atomic { gone[4] && !buried[4] -> id = 4 }; owner_gone(id); id = 0
    od;
out: skip /* never reached: it cannot die alone */
}

/* One live proxy at a time: the old one is seen dead before a new one has its id. */
proctype supervisor()
{
    byte id = 1, e, k, x, me;
    short w;
    bool won, first;

    do
    :: id <= owners ->
        run proxy(id);
end:    (halted[id] || beside); /* it is killed, where it was stopped */
        if
        :: kill_stopped && !beside && watched ->
            gone[id] = true;
            buried[id]
        :: kill_stopped && !beside && !watched -> gone[id] = true; owner_gone(id)
        :: else
        fi;
        id++
    :: else -> break
    od;
out: atomic { id = 0; e = 0; w = 0 }
}

/* ---- the world -------------------------------------------------------------------- */

proctype clock()
{
end:
    do
    :: OPEN(state[0]) && !late[0] -> late[0] = true
    :: OPEN(state[1]) && !late[1] -> late[1] = true
    od
}

#define MORTAL(id) (!halted[id])

/* Kills and stops whom it likes, or nobody more. */
proctype killer()
{
    byte id = 1;
    do
    :: atomic { kills > 0 && id <= owners && MORTAL(id) -> halted[id] = true; gone[id] = true; kills--; id++ }
    :: atomic { stops > 0 && id <= owners && MORTAL(id) -> halted[id] = true; stops--; id++ }
    :: atomic { rank_kills > 0 && MORTAL(RANK_ID(0)) -> halted[RANK_ID(0)] = true; gone[RANK_ID(0)] = true; rank_kills-- }
    :: atomic { rank_kills > 0 && ranks > 1 && MORTAL(RANK_ID(1)) -> halted[RANK_ID(1)] = true; gone[RANK_ID(1)] = true; rank_kills-- }
    :: true -> break
    od;
    id = 0
}

init
{
    d_step {
        c_code {
            now.rounds = setting("rounds"); now.pages = setting("pages");
            now.ranks = setting("ranks"); now.owners = setting("owners");
            now.last = setting("last"); now.kills = setting("kills");
            now.stops = setting("stops"); now.rank_kills = setting("rank_kills");
            now.watched = setting("watched"); now.helped = setting("helped");
            now.sliced = setting("sliced"); now.wakes = setting("wakes");
            now.cancels = setting("cancels"); now.refusals = setting("refusals");
            now.unanswered = setting("unanswered");
            now.kill_stopped = setting("kill_stopped");
            now.quarantined = setting("quarantined"); now.swept = setting("swept");
            now.beside = setting("beside");
        };
        free_pages = (1 << pages) - 1
    };
    atomic {
        run engine();
        run supervisor();
        run clock();
        if :: watched -> run watchdog() :: else fi;
        if :: kills + stops + rank_kills > 0 -> run killer() :: else fi;
        if :: ranks > 0 -> run rank(0) :: else fi;
        if :: ranks > 1 -> run rank(1) :: else fi
    }
}

#define SETTLED(e) (OPEN(state[e]) -> <> !OPEN(state[e]))
#define SERVED(k) (waiting[k] -> <> (!waiting[k] || gone[RANK_ID(k)]))

ltl resolved { [] (SETTLED(0) && SETTLED(1)) }
ltl verdict { [] (SERVED(0) && SERVED(1)) }
ltl goes_on { <> engine_done }
