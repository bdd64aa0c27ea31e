/* Calls of the C library and the kernel that a test makes fail. The linker puts these
 * wrappers between the product's text and the library (--wrap); the text is unchanged. */
#ifndef FAULTS_H
#define FAULTS_H

enum call {
    CALLOC, MALLOC, STRDUP, EVENTFD, FCNTL, MMAP, MADVISE, PPOLL, PTHREAD_CREATE,
    SPAWN, FILES_INIT, FILES_DUP, FILES_CLOSE, ATTR_INIT, ATTR_MASK, ATTR_DEFAULT,
    ATTR_FLAGS, SOCKETPAIR, SENDMSG, PIDFD_OPEN, WAITID, WAITPID, READ, PRCTL, EXP,
    CALLS
};

/* After `skip` calls that go through, `times` calls fail with this errno. */
void fail(enum call call, int skip, int times, int error);
void fail_no_more(void);
/* At the n-th look at the clock something is done, once. */
void at_clock(int look, void (*act)(void *), void *argument);
/* What exp returns where it is made to fail. */
extern double exp_instead;

#endif
