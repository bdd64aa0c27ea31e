/* The module pp3shm._calls; see calls.h. */
#include "rounds/calls.h"

void *pp3_calls_address(PyObject *number)
{
    void *address = PyLong_AsVoidPtr(number);

    if (!address && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "address: expected one, found 0");
    return address;
}

int pp3_calls_number(PyObject *object, uint64_t *number)
{
    PyObject *index = PyNumber_Index(object);

    *number = index ? PyLong_AsUnsignedLongLong(index) : 0;
    Py_XDECREF(index);
    return PyErr_Occurred() ? -1 : 0;
}

void pp3_calls_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc free = (freefunc)PyType_GetSlot(type, Py_tp_free);

    free(self);
    Py_DECREF(type);
}

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type ? PyModule_AddType(module, *type) : -1;
}

static int module_exec(PyObject *module)
{
    struct pp3_calls *s = PyModule_GetState(module);

    return add_type(module, &pp3_asker_spec, &s->asker) < 0 ||
                   add_type(module, &pp3_heard_spec, &s->heard) < 0 ||
                   add_type(module, &pp3_hearer_spec, &s->hearer) < 0
               ? -1
               : 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct pp3_calls *s = PyModule_GetState(module);

    Py_VISIT(s->asker);
    Py_VISIT(s->hearer);
    Py_VISIT(s->heard);
    return 0;
}

static int module_clear(PyObject *module)
{
    struct pp3_calls *s = PyModule_GetState(module);

    Py_CLEAR(s->asker);
    Py_CLEAR(s->hearer);
    Py_CLEAR(s->heard);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pp3shm._calls",
    .m_doc = "The calls of a round; see pp3shm/rounds/calls.c.",
    .m_size = sizeof(struct pp3_calls),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__calls(void) { return PyModuleDef_Init(&module_def); }
