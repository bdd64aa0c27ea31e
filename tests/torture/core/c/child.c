/* What the watchdog of a test starts: a process that gets its record and ends somehow. */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"
#include "world.h"

enum { RECORD_FD = 3 };

int child_main(const char *mode)
{
    struct pp3_record record;

    if (strcmp(mode, "fail") == 0)
        return 9;
    if (strcmp(mode, "stubborn") == 0)
        (void)signal(SIGTERM, SIG_IGN);
    if (recv(RECORD_FD, &record, sizeof record, 0) != (ssize_t)sizeof record ||
        record.magic != pp3_record_magic() || record.owner == 0)
        return 3;
    if (strcmp(mode, "leave") == 0)
        return 7;
    for (;;) /* the engine's end of the socket closes when it is gone */
        if (recv(RECORD_FD, &record, sizeof record, 0) <= 0)
            return 0;
}
