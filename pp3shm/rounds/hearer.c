/* Hears of rounds and lets them go; see calls.h. */
#include "rounds/calls.h"

#include <errno.h>
#include <limits.h>

/* reply holds the interpreter's lock for at most so long while it spins: a hundredth of
 * what a thread that wants the lock waits for it anyway (sys.getswitchinterval). */
#define HELD_NS UINT64_C(50000)

struct hearer {
    PyObject_HEAD
    struct pp3_hear *hear;
    struct pp3_ring *ring; /* NULL: closed */
    PyObject *keep;        /* what the two point into */
    PyObject *views;       /* a tuple, by place */
    PyObject *refuse;      /* raises what a return code means: (code, ticket, found) */
    PyTypeObject *reply;   /* a subclass of Heard */
};

/* What one call works with, whatever another thread closes meanwhile. */
struct call {
    struct pp3_hear *hear;
    struct pp3_ring *ring;
    PyObject *keep, *views;
};

static struct call begin(PyObject *self)
{
    struct hearer *h = (struct hearer *)self;
    struct call c;

    PP3_LOCK(self);
    c.hear = h->hear;
    c.ring = h->ring;
    c.keep = Py_XNewRef(h->keep);
    c.views = Py_XNewRef(h->views);
    PP3_UNLOCK();
    return c;
}

static void end(struct call *c)
{
    Py_XDECREF(c->keep);
    Py_XDECREF(c->views);
}

/* Returned in place of a return code: an error is raised already. */
#define RAISED INT_MIN

static PyObject *refuse(PyObject *self, int code, PyObject *ticket, uint64_t found)
{
    PyObject *refuse = ((struct hearer *)self)->refuse;
    PyObject *said;

    if (code == RAISED)
        return NULL;
    said = PyObject_CallFunction(refuse, "iOK", code, ticket, (unsigned long long)found);
    if (said) {
        Py_DECREF(said);
        PyErr_Format(PyExc_SystemError, "pp3shm: nothing was raised for %d", code);
    }
    return NULL;
}

/* 0, or -EDOM where it is no number that a round could have: then nothing is raised.
 * RAISED: what a number of Python's raised, or a signal's handler meanwhile. */
static int ticket_of(PyObject *number, uint64_t *ticket)
{
    if (pp3_calls_number(number, ticket) == 0)
        return 0;
    if (!PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_OverflowError))
        return RAISED;
    PyErr_Clear();
    return -EDOM;
}

static int is_closed(PyObject *self)
{
    int closed;

    PP3_LOCK(self);
    closed = !((struct hearer *)self)->ring;
    PP3_UNLOCK();
    return closed;
}

/* As pp3_hear, to the end of the wait. RAISED: by a signal's handler. */
static int hear(PyObject *self, const struct call *c, uint64_t ticket, uint64_t limit_ns,
                uint32_t stale, struct pp3_heard *to)
{
    int place;

    /* limit 0: whatever another process made of the entry meanwhile, it does not wait */
    if (pp3_hear_soon(c->hear, c->ring, ticket, limit_ns, HELD_NS) &&
        (place = pp3_hear(c->hear, c->ring, ticket, 0, stale, to)) != -ETIMEDOUT)
        return place;
    do { /* it comes back now and then, for signals and for close */
        Py_BEGIN_ALLOW_THREADS
        place = pp3_hear(c->hear, c->ring, ticket, limit_ns, stale, to);
        Py_END_ALLOW_THREADS
        if (place == -EAGAIN && PyErr_CheckSignals() != 0)
            return RAISED;
        if (place == -EAGAIN && is_closed(self)) /* nobody may be left to resolve it */
            return -EBADF;
    } while (place == -EAGAIN);
    return place;
}

static PyObject *read_round(PyObject *self, const struct call *c, PyObject *number,
                            uint64_t limit_ns, uint32_t stale)
{
    struct hearer *h = (struct hearer *)self;
    struct heard *reply;
    uint64_t ticket, found;
    int place = c->ring ? ticket_of(number, &ticket) : -EBADF;

    if (place != 0)
        return refuse(self, place, number, 0);
    /* made before the wait, which hides what that takes */
    if (!(reply = (struct heard *)PyType_GenericAlloc(h->reply, 0)))
        return NULL;
    place = hear(self, c, ticket, limit_ns, stale, &reply->of);
    if (place >= 0) {
        reply->hearer = Py_NewRef(self);
        reply->views = Py_XNewRef(PyTuple_GetItem(c->views, place));
        if (reply->views)
            return (PyObject *)reply;
    }
    found = reply->of.round;
    Py_DECREF(reply);
    return refuse(self, place >= 0 ? RAISED : place, number, found);
}

static PyObject *hearer_read(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    uint64_t limit_ns = UINT64_MAX, stale = 0;
    PyObject *reply;
    struct call c;

    if (n < 1 || n > 3)
        return PyErr_Format(PyExc_TypeError, "read: expected 1 to 3 arguments, found %zd",
                            n);
    if ((n > 1 && pp3_calls_number(args[1], &limit_ns) < 0) ||
        (n > 2 && pp3_calls_number(args[2], &stale) < 0))
        return NULL;
    c = begin(self);
    reply = read_round(self, &c, args[0], limit_ns, (uint32_t)stale);
    end(&c);
    return reply;
}

PyObject *pp3_hearer_release(PyObject *self, PyObject *number)
{
    struct call c = begin(self);
    uint64_t ticket;
    int code = c.ring ? ticket_of(number, &ticket) : -EBADF;

    if (code == 0)
        code = pp3_let_go(c.hear, c.ring, ticket);
    end(&c);
    if (code != 0)
        return refuse(self, code, number, 0);
    Py_RETURN_NONE;
}

static PyObject *hearer_close(PyObject *self, PyObject *unused)
{
    struct hearer *h = (struct hearer *)self;
    struct call c;

    (void)unused;
    PP3_LOCK(self);
    h->ring = NULL;
    c.keep = h->keep;
    c.views = h->views;
    h->keep = h->views = NULL;
    PP3_UNLOCK();
    end(&c);
    Py_RETURN_NONE;
}

static int hearer_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct hearer *h = (struct hearer *)self;

    Py_VISIT(Py_TYPE(self));
    Py_VISIT(h->keep);
    Py_VISIT(h->views);
    Py_VISIT(h->refuse);
    Py_VISIT(h->reply);
    return 0;
}

/* keep last: what is refused may still be asked of the ring, but not read. */
static int hearer_clear(PyObject *self)
{
    struct hearer *h = (struct hearer *)self;

    h->ring = NULL;
    Py_CLEAR(h->refuse);
    Py_CLEAR(h->views);
    Py_CLEAR(h->reply);
    Py_CLEAR(h->keep);
    return 0;
}

static void hearer_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)hearer_clear(self);
    pp3_calls_free(self);
}

static PyObject *hearer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *hear, *ring, *keep, *views, *refuse, *reply;
    struct pp3_calls *s = PyModule_GetState(PyType_GetModule(type));
    struct hearer *h;
    int fits;

    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OOOO!OO!:Hearer", &hear, &ring, &keep, &PyTuple_Type,
                          &views, &refuse, &PyType_Type, &reply))
        return NULL;
    if ((fits = PyObject_IsSubclass(reply, (PyObject *)s->heard)) <= 0) {
        if (fits == 0)
            PyErr_SetString(PyExc_TypeError, "reply: expected a subclass of Heard");
        return NULL;
    }
    if (!(h = (struct hearer *)PyType_GenericAlloc(type, 0)))
        return NULL;
    if (!(h->hear = pp3_calls_address(hear)) || !(h->ring = pp3_calls_address(ring))) {
        Py_DECREF(h);
        return NULL;
    }
    h->keep = Py_NewRef(keep);
    h->views = Py_NewRef(views);
    h->refuse = Py_NewRef(refuse);
    h->reply = (PyTypeObject *)Py_NewRef(reply);
    return (PyObject *)h;
}

static PyMethodDef hearer_methods[] = {
    {"read", (PyCFunction)(void (*)(void))hearer_read, METH_FASTCALL,
     PyDoc_STR("read(ticket, limit_ns, stale): wait for a round; see pp3_hear.")},
    {"release", pp3_hearer_release, METH_O, PyDoc_STR("Let a round go; see pp3_let_go.")},
    {"close", hearer_close, METH_NOARGS, PyDoc_STR("Let go of the ring. Idempotent.")},
    {0},
};

static PyType_Slot hearer_slots[] = {
    {Py_tp_doc, "Hearer(hear, ring, keep, views, refuse, reply): a rank's reading side."},
    {Py_tp_new, hearer_new},
    {Py_tp_dealloc, hearer_dealloc},
    {Py_tp_traverse, hearer_traverse},
    {Py_tp_clear, hearer_clear},
    {Py_tp_methods, hearer_methods},
    {0},
};

PyType_Spec pp3_hearer_spec = {
    .name = "pp3shm._calls.Hearer",
    .basicsize = sizeof(struct hearer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = hearer_slots,
};
