/* Placement of memory on the nodes of a memory space. */

#ifndef UMF_RS_UMF_EXPERIMENTAL_MEMPOLICY_H
#define UMF_RS_UMF_EXPERIMENTAL_MEMPOLICY_H

#include <umf/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct umf_mempolicy_t *umf_mempolicy_handle_t;
typedef const struct umf_mempolicy_t *umf_const_mempolicy_handle_t;
typedef enum umf_mempolicy_membind_t {
    UMF_MEMPOLICY_INTERLEAVE,
    UMF_MEMPOLICY_BIND,
    UMF_MEMPOLICY_PREFERRED,
    UMF_MEMPOLICY_SPLIT,
} umf_mempolicy_membind_t;

typedef struct umf_mempolicy_split_partition_t {
    unsigned weight;
    unsigned target;
} umf_mempolicy_split_partition_t;

umf_result_t umfMempolicyCreate(umf_mempolicy_membind_t bind, umf_mempolicy_handle_t *hPolicy);

umf_result_t umfMempolicyDestroy(umf_mempolicy_handle_t hPolicy);

umf_result_t umfMempolicySetInterleavePartSize(umf_mempolicy_handle_t hPolicy, size_t partSize);

umf_result_t umfMempolicySetCustomSplitPartitions(umf_mempolicy_handle_t hPolicy,
    umf_mempolicy_split_partition_t *partList, size_t partListLen);

#ifdef __cplusplus
}
#endif

#endif
