/* What the floor's processes need of the machine: cores, clocks, ends, sockets. */
#ifndef PP3_BENCH_PARTY_H
#define PP3_BENCH_PARTY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Keeps the calling thread on a core; -1: leaves it where it is. */
void pp3_party_pin(int32_t core);

/* Sleeps; 0: not at all. */
void pp3_party_pause(uint64_t ns);

/* CPU time of the calling thread. */
uint64_t pp3_party_cpu(void);

/* Waits for a child's end, its CPU time in *cpu_ns. failed: kills it first.
 * 0, -ETIMEDOUT where it ended by itself and not well, or -errno. */
int pp3_party_reap(pid_t pid, int failed, uint64_t *cpu_ns);

/* Both ends of a stream socket, TCP over loopback or Unix; a receive that waits longer
 * than patience_ns fails. 0 or -errno. */
int pp3_party_pair(int tcp, uint64_t patience_ns, int fd[2]);

/* All n bytes, one system call where the kernel takes or has them at once.
 * 0, -ETIMEDOUT where the other side is gone or silent, or -errno. */
int pp3_party_put(int fd, const uint8_t *from, size_t n);
int pp3_party_get(int fd, uint8_t *to, size_t n);

#endif
