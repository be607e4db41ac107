/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of the PyTorch binding: C functions of torch's stable shim, found at run time, so that neither headers
 * nor libraries of torch are needed to build. */
#ifndef RAPT_PYTHON_TORCH_OPS_H
#define RAPT_PYTHON_TORCH_OPS_H
#include "_rapt.h"

#include <stdbool.h>

typedef uint64_t slot_value;            /* StableIValue: a handle, an integer, or the bytes of a double */
typedef void *tensor_handle;            /* owned: whoever gets one deletes it */
typedef void *library_handle;
typedef void (*boxed_kernel)(slot_value *stack, uint64_t n_in, uint64_t n_out);

/* The shim's functions, by their own names. They return 0 for success. */
typedef struct torch_api {
  int32_t (*aoti_torch_library_init_fragment)(const char *, const char *, uint32_t, library_handle *);
  int32_t (*aoti_torch_library_init_impl)(const char *, const char *, const char *, uint32_t, library_handle *);
  int32_t (*torch_library_def_with_tags)(library_handle, const char *, const int32_t *, int32_t);
  int32_t (*torch_library_impl)(library_handle, const char *, boxed_kernel, uint64_t);
  int32_t (*aoti_torch_delete_library_object)(library_handle);
  int32_t (*torch_tag_pt2_compliant_tag)(void);
  int32_t (*torch_tag_needs_fixed_stride_order)(void);
  uint64_t (*aoti_torch_abi_version)(void);
  int32_t (*aoti_torch_get_sizes)(tensor_handle, int64_t **);
  int32_t (*aoti_torch_get_strides)(tensor_handle, int64_t **);
  int32_t (*aoti_torch_get_dim)(tensor_handle, int64_t *);
  int32_t (*aoti_torch_get_dtype)(tensor_handle, int32_t *);
  int32_t (*torch_get_const_data_ptr)(tensor_handle, const void **);
  int32_t (*torch_get_mutable_data_ptr)(tensor_handle, void **);
  int32_t (*aoti_torch_empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t,
                                      tensor_handle *);
  int32_t (*aoti_torch_delete_tensor_object)(tensor_handle);
  int32_t (*torch_delete_stable_ivalue)(slot_value *);
  int32_t (*torch_new_string_handle)(const char *, size_t, void **);
  int32_t (*torch_string_c_str)(void *, const char **);
  int32_t (*torch_delete_string)(void *);
  int32_t (*torch_call_dispatcher)(const char *, const char *, slot_value *, uint64_t);
  const char *(*torch_exception_get_what_without_backtrace)(void);
  void (*aoti_torch_check)(_Bool, const char *, const char *, uint32_t, const char *);
  bool (*aoti_torch_grad_mode_is_enabled)(void);
  int32_t (*torch_parallel_for)(int64_t begin, int64_t end, int64_t grain, void (*)(int64_t, int64_t, void *), void *);
  int32_t (*aoti_torch_device_type_cpu)(void);
  int32_t (*aoti_torch_dtype_float16)(void);
  int32_t (*aoti_torch_dtype_bfloat16)(void);
  int32_t (*aoti_torch_dtype_float32)(void);
  int32_t (*aoti_torch_dtype_float64)(void);
  int32_t (*aoti_torch_dtype_bool)(void);
  int32_t (*aoti_torch_dtype_int32)(void);
  int32_t (*aoti_torch_dtype_int64)(void);
  /* The host's operator itself, past the dispatcher and so past any override of it. */
  int32_t (*aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu)(
      tensor_handle, tensor_handle, tensor_handle, double, int32_t, tensor_handle *, double *, tensor_handle *,
      tensor_handle *);
  /* bool c10::TensorImpl::requires_grad() const, of libc10: the shim has no such question. */
  bool (*requires_grad)(const void *);
  /* at::globalContext().userEnabledFlashSDP(): whether sdpa_kernel admits a fused kernel. */
  const void *(*global_context)(void);
  bool (*flash_enabled)(const void *);
  /* PyObject *THPVariable_Wrap(const at::TensorBase &), of libtorch_python: the Python object of a tensor. */
  PyObject *(*wrap)(const void *);
} torch_api;

extern torch_api torch;

/* One call as the core takes it, put together from tensors. */
typedef struct job {
  rapt_problem p;
  rapt_buffers b;
  rapt_reason why;                      /* of a fault met while the problem was put together */
} job;

void torch_begin(job *j);
rapt_status torch_operands(job *j, tensor_handle q, tensor_handle k, tensor_handle v);
rapt_status torch_planes(job *j, tensor_handle mask, tensor_handle bias);       /* NULL: not given */
void torch_dense(rapt_problem *p, bool contiguous);     /* strides of out: dense in the order of its axes, or of q's (H2) */
tensor_handle torch_allocate(int rank, const int64_t *size, const int64_t *stride, int32_t dtype, void **data);

/* A symbol of a library that PyTorch has loaded; NULL, with an exception set, where it is missing. */
void *torch_symbol(const char *library, const char *name);
/* Finds every function. false, with an exception set, when torch is not loaded or a function is missing. */
bool torch_api_load(void);
/* The tensor as the core takes it; false for a dtype the core has no name for. */
bool torch_describe(tensor_handle t, rapt_tensor *out);
int32_t torch_dtype(int32_t dtype);     /* the host's number of a dtype of the core, -1 for none */
/* Deletes what the slots hold. kinds: a letter a slot: T tensor, t tensor or none, f number or none, s text, other
 * letters own nothing. */
void torch_release(slot_value *stack, const char *kinds);
/* Ends the kernel with a RuntimeError of this text. Inputs must have been released: it does not return. */
void torch_raise(const char *text);
/* What a call to the core came to: the status, which row of the host's is to run, and, of a refusal, whether
 * preferences of any level keep the host's rows from running. */
typedef struct verdict { rapt_status status; int32_t row; char id[24]; bool banned; } verdict;

/* What lives in Python: () -> ctx, and (text of the call's preferences) -> text with the scopes' joined. */
void torch_python(PyObject *make_context, PyObject *merge_policy);
rapt_ctx *torch_ctx(void);              /* the binding's context, made at the first call; NULL where that failed */
/* Points the preferences of p to those of the call and of the scopes around it. false: they could not be read; the call
 * must then be refused, never run without them (D12). barred: a constant, why our own rows may not run, NULL
 * where they may. */
bool torch_policy(rapt_problem *p, const char *policy, const char *barred);
bool torch_scoped(void);                /* scopes of preference are open somewhere in the process */
void torch_remember(const rapt_problem *p);     /* what last_report() explains when asked */
void torch_ran(void);                           /* it has run: the report may say so (R3) */
void torch_note(const char *note);              /* a constant: what its report says of the arguments */
/* Asks the core why a call did not run, or what the host is to run in its place. Remembers the last answers. */
void torch_verdict(rapt_ctx *ctx, const rapt_problem *p, verdict *v);
void torch_host_ran(rapt_ctx *ctx, const verdict *v);
extern const char *const torch_spelling[RAPT_FIELD_COUNT];      /* the host's names (E3) */
/* The words of a refusal. */
void torch_refusal(rapt_ctx *ctx, const rapt_problem *p, char *text, size_t n);

PyObject *ops_register(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ops_override(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ops_host(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ops_scope(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ops_report(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ops_forget(PyObject *module, PyObject *const *args, Py_ssize_t n);

/* _torch_known.c: calls that are known again. */
PyObject *known_learn(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *known_begin(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *known_keep(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *known_call(PyObject *module, PyObject *const *args, Py_ssize_t n);
#endif
