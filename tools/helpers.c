/* What compiled kernels call of numba's runtime, so that they run without it. Only Python's stable interface is used.

   Kernels raise one error, an index out of bounds, so that what numba packs for it need not be read. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

/* An array as numba passes it; shape and strides follow, `ndim` of each. */
struct array {
    void *meminfo;
    PyObject *parent;
    Py_ssize_t nitems, itemsize;
    void *data;
    Py_ssize_t shape_and_strides[];
};

/* Fill an array from an argument, which outlives the call. */
int numba_adapt_ndarray(PyObject *argument, struct array *array)
{
    Py_buffer view;
    Py_ssize_t nitems = 1;
    if (PyObject_GetBuffer(argument, &view, PyBUF_STRIDES))
        return -1;
    for (int i = 0; i < view.ndim; i++) {
        nitems *= view.shape[i];
        array->shape_and_strides[i] = view.shape[i];
        array->shape_and_strides[view.ndim + i] = view.strides[i];
    }
    array->meminfo = NULL;
    array->parent = argument;
    array->nitems = nitems;
    array->itemsize = view.itemsize;
    array->data = view.buf;
    PyBuffer_Release(&view);
    return 0;
}

void numba_gil_ensure(PyGILState_STATE *state) { *state = PyGILState_Ensure(); }
void numba_gil_release(PyGILState_STATE *state) { PyGILState_Release(*state); }

PyObject *numba_unpickle(const char *data, int size, const char *hashed) { Py_RETURN_NONE; }
PyObject *numba_runtime_build_excinfo_struct(PyObject *template, PyObject *arguments) { Py_RETURN_NONE; }

int numba_do_raise(PyObject *error)
{
    Py_DECREF(error);
    PyErr_SetString(PyExc_IndexError, "index is out of bounds");
    return 0;
}

/* Return whether this processor runs the library. */
int is_supported(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports(LEVEL);
#else
    return 1;
#endif
}
