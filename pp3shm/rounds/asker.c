/* Asks for rounds; see calls.h. */
#include "rounds/calls.h"

#include <errno.h>

struct asker {
    PyObject_HEAD
    struct pp3_ask *ask;
    struct pp3_ring *ring; /* NULL: closed */
    PyObject *keep;        /* what the two point into */
};

static PyObject *asker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *ask, *ring, *keep;
    struct asker *a;

    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OOO:Asker", &ask, &ring, &keep))
        return NULL;
    if (!(a = (struct asker *)PyType_GenericAlloc(type, 0)))
        return NULL;
    if (!(a->ask = pp3_calls_address(ask)) || !(a->ring = pp3_calls_address(ring))) {
        Py_DECREF(a);
        return NULL;
    }
    a->keep = Py_NewRef(keep);
    return (PyObject *)a;
}

static PyObject *asker_close(PyObject *self, PyObject *unused)
{
    struct asker *a = (struct asker *)self;
    PyObject *keep;

    (void)unused;
    PP3_LOCK(self);
    a->ring = NULL;
    keep = a->keep;
    a->keep = NULL;
    PP3_UNLOCK();
    Py_XDECREF(keep);
    Py_RETURN_NONE;
}

static void asker_dealloc(PyObject *self)
{
    Py_CLEAR(((struct asker *)self)->keep);
    pp3_calls_free(self);
}

static PyObject *asker_step(PyObject *self, PyObject *seconds)
{
    struct asker *a = (struct asker *)self;
    double timeout_s = PyFloat_AsDouble(seconds);
    int64_t ticket = -EBADF;

    if (timeout_s == -1.0 && PyErr_Occurred())
        return NULL;
    PP3_LOCK(self); /* close must not come in between; it waits for nobody */
    if (a->ring)
        ticket = pp3_ask_step(a->ask, a->ring, timeout_s);
    PP3_UNLOCK();
    return PyLong_FromLongLong(ticket);
}

static PyObject *asker_append(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    struct asker *a = (struct asker *)self;
    uint64_t slot, digest;
    int code = -EBADF;
    Py_ssize_t bytes;
    char *tokens;

    if (n != 3)
        return PyErr_Format(PyExc_TypeError, "append: expected 3 arguments, found %zd", n);
    if (pp3_calls_number(args[0], &slot) < 0 ||
        PyBytes_AsStringAndSize(args[1], &tokens, &bytes) < 0 ||
        pp3_calls_number(args[2], &digest) < 0)
        return NULL;
    PP3_LOCK(self);
    if (a->ring) /* bytes of an object stand at a multiple of a word */
        code = pp3_ask_append(a->ask, a->ring, slot > UINT32_MAX ? UINT32_MAX
                              : (uint32_t)slot, (const int32_t *)(const void *)tokens,
                              (uint64_t)bytes / sizeof(int32_t), digest);
    PP3_UNLOCK();
    return PyLong_FromLong(code);
}

static PyMethodDef asker_methods[] = {
    {"append", (PyCFunction)(void (*)(void))asker_append, METH_FASTCALL,
     PyDoc_STR("append(slot, tokens, digest): 0 or -errno; see pp3_ask_append.")},
    {"step", asker_step, METH_O,
     PyDoc_STR("Ask for the rows as they stand: the ticket, or -errno; -EBADF: closed.")},
    {"close", asker_close, METH_NOARGS, PyDoc_STR("Let go of the ring. Idempotent.")},
    {0},
};

static PyType_Slot asker_slots[] = {
    {Py_tp_doc, "Asker(ask, ring, keep): an engine's asking side."},
    {Py_tp_new, asker_new},
    {Py_tp_dealloc, asker_dealloc},
    {Py_tp_methods, asker_methods},
    {0},
};

PyType_Spec pp3_asker_spec = {
    .name = "pp3shm._calls.Asker",
    .basicsize = sizeof(struct asker),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = asker_slots,
};
