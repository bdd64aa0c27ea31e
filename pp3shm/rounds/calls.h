/* The three calls of a round as Python makes them: step, reply, release.
 *
 * pp3shm._core has them too, by cffi, which packs arguments into a tuple and lets go of
 * the interpreter's lock around each call, whatever it does. That costs more than the
 * calls themselves; and where another thread runs Python, whoever lets go of the lock
 * waits 5 ms for it, though the reply takes 20 us. So these hold it: step and release
 * never wait, and reply spins for a while before it lets go.
 *
 * This is a module of its own in the library of pp3shm._core, for it shares the core's
 * text and state (pp3shm/calls.py loads it). Addresses come from that module: only
 * pp3shm itself makes these objects.
 */
#ifndef PP3_ROUNDS_CALLS_H
#define PP3_ROUNDS_CALLS_H

#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* which has no stable ABI */
#undef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000 /* as setup.py */
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "rounds/hear.h"

/* Around what another thread must not come in between: an interpreter without a lock of
 * its own has one for each object. */
#ifdef Py_GIL_DISABLED
#define PP3_LOCK(o) Py_BEGIN_CRITICAL_SECTION(o)
#define PP3_UNLOCK() Py_END_CRITICAL_SECTION()
#else
#define PP3_LOCK(o) {
#define PP3_UNLOCK() }
#endif

/* Of the module. */
struct pp3_calls {
    PyTypeObject *asker, *hearer, *heard;
};

struct heard {
    PyObject_HEAD
    PyObject *hearer; /* which lets the round go */
    PyObject *views;  /* of its buffer */
    PyObject *status; /* whatever the subclass keeps there */
    struct pp3_heard of;
};

/* The address that an integer is; NULL and an error for 0, which none of ours is. */
void *pp3_calls_address(PyObject *number);

/* An integer of any type; -1 and an error where it is none, or none of 64 bits. */
int pp3_calls_number(PyObject *object, uint64_t *number);

/* The memory of an object that has let go of all that it held. */
void pp3_calls_free(PyObject *self);

/* Lets a round go: None, or NULL with the error raised. */
PyObject *pp3_hearer_release(PyObject *self, PyObject *ticket);

extern PyType_Spec pp3_asker_spec, pp3_hearer_spec, pp3_heard_spec;

#endif
