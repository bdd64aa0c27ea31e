#include "proxy/exchange.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

static uint64_t round_of(const uint8_t *step)
{
    uint64_t round = 0;
    for (int i = 7; i >= 0; i--)
        round = round << 8 | step[i];
    return round;
}

int pp3_take_step(struct pp3_ring *r, const struct pp3_layout *l, uint64_t *mine,
                  uint8_t *step, size_t capacity, uint32_t *bytes)
{
    int taken = pp3_take(r, mine);
    if (taken <= 0)
        return taken;
    memcpy(step, pp3_request(r, *mine), capacity);
    if (pp3_step_check(l, step, capacity, bytes) == 0 &&
        round_of(step) == pp3_ticket(*mine))
        return 1;
    uint64_t word;
    pp3_resolve(r, pp3_ticket(*mine), PP3_CANCELLED, &word);
    pp3_give_back(r, *mine);
    return -EINVAL;
}

int pp3_answer_failed(struct pp3_ring *r, const struct pp3_layout *l, uint64_t mine,
                      const uint8_t *step, int32_t status)
{
    uint8_t *page = pp3_page(r, mine);
    if (!page)
        return -EOWNERDEAD; /* a forked child, where no page is mapped */
    pp3_fail_page(l, step, status, page);
    pp3_trace_put(r, mine, PP3_ISSUED, pp3_tick());
    return pp3_publish(r, mine);
}

int pp3_answer(struct pp3_ring *r, const struct pp3_layout *l, uint64_t mine,
               const uint8_t *step, const uint8_t *frame, size_t frame_bytes,
               const uint8_t *session, uint64_t sequence, struct pp3_trace *trace,
               struct pp3_fault *fault)
{
    uint8_t *page = pp3_page(r, mine);
    if (!page)
        return -EOWNERDEAD;
    int reason = pp3_accept(l, step, frame, frame_bytes, session, sequence, page, fault);
    if (reason != 0)
        return reason;
    trace->checked = pp3_tick();
    /* just before the swap, which moves the line in any case; taken and sent may stand
     * there already */
    if (trace->taken)
        pp3_trace_put(r, mine, PP3_TAKEN, trace->taken);
    if (trace->sent)
        pp3_trace_put(r, mine, PP3_SENT, trace->sent);
    pp3_trace_put(r, mine, PP3_RECEIVED, trace->received);
    pp3_trace_put(r, mine, PP3_CHECKED, trace->checked);
    trace->published = pp3_tick();
    pp3_trace_put(r, mine, PP3_ISSUED, trace->published);
    return pp3_publish(r, mine);
}

int pp3_poll(struct pollfd *fds, unsigned long n, int64_t sleep_ns)
{
    struct timespec t = {.tv_sec = (time_t)(sleep_ns / 1000000000),
                         .tv_nsec = (long)(sleep_ns % 1000000000)};
    int ready = ppoll(fds, (nfds_t)n, &t, NULL);
    return ready < 0 ? -errno : ready;
}

int pp3_work_poll(struct pp3_ring *r, struct pollfd *fds, unsigned long n,
                  int64_t sleep_ns)
{
    /* E4: counted as asleep, fence, then one more look at the ring; a submit after
     * that look sees the count and rings the bell descriptor. */
    pp3_work_prepare(r);
    int ready = pp3_work_pending(r) ? 0 : pp3_poll(fds, n, sleep_ns);
    pp3_work_done(r);
    return ready;
}

/* Without a link, a spin looks at its orders so often: a poll is a system call in which
 * no round is seen. */
#define ORDERS_NS 10000u

/* What there is to do, after a poll of link and control that gave this. */
static int wake_of(struct pp3_ring *r, const struct pollfd *fds, int polled)
{
    if (polled < 0 && polled != -EINTR)
        return polled;
    int wake = r && pp3_work_pending(r) ? PP3_WAKE_WORK : 0;
    if (polled > 0 && fds[0].revents != 0)
        wake |= PP3_WAKE_LINK;
    if (polled > 0 && fds[1].revents != 0)
        wake |= PP3_WAKE_CONTROL;
    return wake;
}

/* A spin that sees the ring and nothing else. */
static int look_for_work(struct pp3_ring *r, uint64_t until, uint64_t *yielded)
{
    for (uint64_t now; (now = pp3_now()) < until; pp3_spin_on(yielded, now))
        if (pp3_work_pending(r))
            return PP3_WAKE_WORK;
    return 0;
}

int pp3_proxy_sleep(struct pp3_ring *r, int link_fd, int control_fd, int64_t spin_ns,
                    int64_t sleep_ns)
{
    struct pollfd fds[3] = {
        {.fd = link_fd, .events = POLLIN},
        {.fd = control_fd, .events = POLLIN},
        {.fd = r ? pp3_bell_fd(r) : -1, .events = POLLIN},
    };
    uint64_t now = pp3_now(), spun = now + (uint64_t)spin_ns, yielded = now;
    int wake;
    for (;;) {
        wake = wake_of(r, fds, pp3_poll(fds, 2, 0));
        if (wake == 0 && spin_ns > 0 && r && link_fd < 0)
            wake = look_for_work(r, pp3_least(spun, pp3_now() + ORDERS_NS), &yielded);
        if (wake != 0 || (now = pp3_now()) >= spun)
            break;
        pp3_spin_on(&yielded, now);
    }
    if (wake != 0 || sleep_ns <= 0)
        return wake;
    return wake_of(r, fds, r ? pp3_work_poll(r, fds, 3, sleep_ns)
                             : pp3_poll(fds, 2, sleep_ns));
}

int pp3_die_with_parent(void)
{
    return prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL, 0ul, 0ul, 0ul) < 0 ? -errno : 0;
}
