/* Functions with variable arguments, and access to a va_list, which Rust lacks. */

#include <stdarg.h>
#include <stddef.h>

#define EXPORTED __attribute__((visibility("default")))

enum { READ = 0, WRITE = 1, RUN = 2 };

typedef int control(void *state, int source, const char *name, void *argument, size_t size, int query, va_list more);

int umf_capi_query(const char *path, void *argument, size_t size, int query, va_list more);

EXPORTED int umfCtlGet(const char *path, void *argument, size_t size, ...) {
    va_list more;
    va_start(more, size);
    int result = umf_capi_query(path, argument, size, READ, more);
    va_end(more);
    return result;
}

EXPORTED int umfCtlSet(const char *path, void *argument, size_t size, ...) {
    va_list more;
    va_start(more, size);
    int result = umf_capi_query(path, argument, size, WRITE, more);
    va_end(more);
    return result;
}

EXPORTED int umfCtlExec(const char *path, void *argument, size_t size, ...) {
    va_list more;
    va_start(more, size);
    int result = umf_capi_query(path, argument, size, RUN, more);
    va_end(more);
    return result;
}

void *umf_capi_next_pointer(va_list more) { return va_arg(more, void *); }

size_t umf_capi_next_size(va_list more) { return va_arg(more, size_t); }

/* Calls with a copy of the arguments: what `body` takes is not taken for the caller. */
void umf_capi_with_copy(void (*body)(void *context, va_list copy), void *context, va_list more) {
    va_list copy;
    va_copy(copy, more);
    body(context, copy);
    va_end(copy);
}

/* The callee gets a copy, so that several callees can get the same arguments. */
int umf_capi_forward(control *to, void *state, int source, const char *name, void *argument, size_t size, int query,
                     va_list more) {
    va_list copy;
    va_copy(copy, more);
    int result = to(state, source, name, argument, size, query, copy);
    va_end(copy);
    return result;
}

/* As umf_capi_forward, without arguments. */
int umf_capi_forward_none(control *to, void *state, int source, const char *name, void *argument, size_t size, int query,
                          ...) {
    va_list none;
    va_start(none, query);
    int result = to(state, source, name, argument, size, query, none);
    va_end(none);
    return result;
}
