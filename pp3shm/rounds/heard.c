/* What was heard of a round, and what leaves it; see calls.h. */
#include "rounds/calls.h"

static int heard_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct heard *h = (struct heard *)self;

    Py_VISIT(Py_TYPE(self));
    Py_VISIT(h->hearer);
    Py_VISIT(h->views);
    Py_VISIT(h->status);
    return 0;
}

static int heard_clear(PyObject *self)
{
    struct heard *h = (struct heard *)self;

    Py_CLEAR(h->hearer);
    Py_CLEAR(h->views);
    Py_CLEAR(h->status);
    return 0;
}

static void heard_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)heard_clear(self);
    pp3_calls_free(self);
}

static PyObject *heard_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *heard_round(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct heard *)self)->of.round);
}

static PyObject *heard_exit(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    struct heard *h = (struct heard *)self;
    PyObject *round, *done;

    (void)args, (void)n;
    if (!h->hearer) {
        PyErr_SetString(PyExc_ValueError, "reply: expected one of a reader, found none");
        return NULL;
    }
    if (!(round = heard_round(self, NULL)))
        return NULL;
    done = pp3_hearer_release(h->hearer, round);
    Py_DECREF(round);
    return done;
}

static PyObject *heard_place(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((struct heard *)self)->of.place);
}

static PyObject *heard_failed(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((struct heard *)self)->of.failed);
}

static PyObject *heard_stale(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((struct heard *)self)->of.stale);
}

static PyObject *heard_statuses(PyObject *self, void *unused)
{
    struct heard *h = (struct heard *)self;

    (void)unused;
    return PyByteArray_FromStringAndSize((const char *)h->of.status, sizeof h->of.status);
}

static PyObject *heard_trace(PyObject *self, void *unused)
{
    const struct pp3_trace *t = &((struct heard *)self)->of.trace;

    (void)unused;
    return Py_BuildValue("KKKK", (unsigned long long)t->taken,
                         (unsigned long long)t->sent, (unsigned long long)t->received,
                         (unsigned long long)t->checked);
}

static PyObject *or_none(PyObject *field) { return Py_NewRef(field ? field : Py_None); }

static PyObject *heard_views(PyObject *self, void *unused)
{
    (void)unused;
    return or_none(((struct heard *)self)->views);
}

static PyObject *heard_status(PyObject *self, void *unused)
{
    PyObject *status;

    (void)unused;
    PP3_LOCK(self); /* another thread may set it */
    status = or_none(((struct heard *)self)->status);
    PP3_UNLOCK();
    return status;
}

static int heard_set_status(PyObject *self, PyObject *value, void *unused)
{
    PyObject *old;

    (void)unused;
    PP3_LOCK(self);
    old = ((struct heard *)self)->status;
    ((struct heard *)self)->status = Py_XNewRef(value);
    PP3_UNLOCK();
    Py_XDECREF(old);
    return 0;
}

static PyGetSetDef heard_fields[] = {
    {"round", heard_round, NULL, PyDoc_STR("The round; the same number as its ticket."), NULL},
    {"place", heard_place, NULL,
     PyDoc_STR("Index of its buffer among ``Engine.buffers`` or ``Rank.buffers``."), NULL},
    {"_failed", heard_failed, NULL, NULL, NULL},
    {"_stale", heard_stale, NULL, NULL, NULL},
    {"_statuses", heard_statuses, NULL, NULL, NULL},
    {"_trace", heard_trace, NULL, NULL, NULL},
    {"_views", heard_views, NULL, NULL, NULL},
    {"_status", heard_status, heard_set_status, NULL, NULL},
    {0},
};

static PyMethodDef heard_methods[] = {
    {"__enter__", heard_enter, METH_NOARGS, PyDoc_STR("The reply itself.")},
    {"__exit__", (PyCFunction)(void (*)(void))heard_exit, METH_FASTCALL,
     PyDoc_STR("Release the page.")},
    {0},
};

static PyType_Slot heard_slots[] = {
    {Py_tp_doc, "What a call of Hearer.read copied of a round."},
    {Py_tp_dealloc, heard_dealloc},
    {Py_tp_traverse, heard_traverse},
    {Py_tp_clear, heard_clear},
    {Py_tp_methods, heard_methods},
    {Py_tp_getset, heard_fields},
    {0},
};

PyType_Spec pp3_heard_spec = {
    .name = "pp3shm._calls.Heard",
    .basicsize = sizeof(struct heard),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE |
             Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = heard_slots,
};
