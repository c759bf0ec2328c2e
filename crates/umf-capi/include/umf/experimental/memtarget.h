/* Memory targets: NUMA nodes. */

#ifndef UMF_RS_UMF_EXPERIMENTAL_MEMTARGET_H
#define UMF_RS_UMF_EXPERIMENTAL_MEMTARGET_H

#include <stddef.h>
#include <umf/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct umf_memtarget_t *umf_memtarget_handle_t;
typedef const struct umf_memtarget_t *umf_const_memtarget_handle_t;
typedef enum umf_memtarget_type_t {
    UMF_MEMTARGET_TYPE_UNKNOWN = 0,
    UMF_MEMTARGET_TYPE_NUMA = 1,
} umf_memtarget_type_t;

/* Returns the type of a target.
 * @param hMemtarget the target.
 * @param type where the type is written. */
umf_result_t umfMemtargetGetType(umf_const_memtarget_handle_t hMemtarget, umf_memtarget_type_t *type);

/* Returns the size of a target in bytes.
 * @param hMemtarget the target.
 * @param capacity where the size is written. */
umf_result_t umfMemtargetGetCapacity(umf_const_memtarget_handle_t hMemtarget, size_t *capacity);

/* Returns the number of the NUMA node.
 * @param hMemtarget the target.
 * @param id where the number is written. */
umf_result_t umfMemtargetGetId(umf_const_memtarget_handle_t hMemtarget, unsigned *id);

#ifdef __cplusplus
}
#endif

#endif
