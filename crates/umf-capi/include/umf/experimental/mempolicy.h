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

/* Creates a policy.
 * @param bind the placement.
 * @param hPolicy where the policy is written; umfMempolicyDestroy destroys it. */
umf_result_t umfMempolicyCreate(umf_mempolicy_membind_t bind, umf_mempolicy_handle_t *hPolicy);

/* Destroys a policy. Providers that were created with it stay.
 * @param hPolicy the policy. */
umf_result_t umfMempolicyDestroy(umf_mempolicy_handle_t hPolicy);

/* Sets the size of the parts that are placed in turn. Only for UMF_MEMPOLICY_INTERLEAVE.
 * @param hPolicy the policy.
 * @param partSize in bytes; 0 is one page.
 * Errors: INVALID_ARGUMENT for another placement. */
umf_result_t umfMempolicySetInterleavePartSize(umf_mempolicy_handle_t hPolicy, size_t partSize);

/* Sets the shares of the nodes. Only for UMF_MEMPOLICY_SPLIT. Without it the shares are equal.
 * @param hPolicy the policy.
 * @param partList the shares, which are copied.
 * @param partListLen number of shares.
 * Errors: INVALID_ARGUMENT for another placement. */
umf_result_t umfMempolicySetCustomSplitPartitions(umf_mempolicy_handle_t hPolicy,
    umf_mempolicy_split_partition_t *partList, size_t partListLen);

#ifdef __cplusplus
}
#endif

#endif
