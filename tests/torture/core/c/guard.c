#include "guard.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"

void guard_prepare(struct guard *g, const char *mode, uint64_t grace_ns)
{
    static char child[] = "--child";
    static char *environment[] = {0};
    int n = 0;

    memset(g, 0, sizeof *g);
    world_open(&g->w, 2, 4, 1);
    pp3_record_fill(&g->record, &g->w.shape);
    (void)snprintf(g->path, sizeof g->path, "%s", program);
    if (emulator)
        g->argv[n++] = (char *)(uintptr_t)emulator;
    g->argv[n++] = g->path;
    g->argv[n++] = child;
    g->argv[n++] = (char *)(uintptr_t)mode;
    g->plan = (struct pp3_plan){
        .argv = g->argv, .envp = environment, .record = (const uint8_t *)&g->record,
        .record_bytes = sizeof g->record, .n_fds = 1, .fds = {g->w.fd},
        .grace_ns = grace_ns,
    };
}

void guard_begin(struct guard *g, const char *mode, uint64_t grace_ns)
{
    int error;

    guard_prepare(g, mode, grace_ns);
    g->watchdog = pp3_watchdog_start(g->w.engine, &g->plan, &error);
    CHECK(g->watchdog);
    if (!g->watchdog)
        abort();
}

const struct pp3_watch *guard_look(struct guard *g)
{
    pp3_watchdog_stats(g->watchdog, &g->seen);
    return &g->seen;
}

int ignores_term(int pid)
{
    char path[64], line[128];
    unsigned long long ignored = 0;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%d/status", pid);
    file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "SigIgn:", 7) == 0)
            ignored = strtoull(line + 7, 0, 16);
    if (file)
        (void)fclose(file);
    return (int)(ignored >> (SIGTERM - 1) & 1);
}

void guard_end(struct guard *g)
{
    EQUAL(pp3_watchdog_stop(g->watchdog), 0);
    EQUAL(guard_look(g)->state, PP3_WATCH_STOPPED);
    EQUAL(pp3_watchdog_stop(g->watchdog), 0); /* again: nothing */
    pp3_watchdog_free(g->watchdog);
    world_close(&g->w);
}
