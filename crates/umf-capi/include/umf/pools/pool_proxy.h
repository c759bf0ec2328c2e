/* The pool that forwards each request to its provider. It has no parameters. */

#ifndef UMF_RS_UMF_POOLS_POOL_PROXY_H
#define UMF_RS_UMF_POOLS_POOL_PROXY_H

#include <umf/base.h>
#include <umf/memory_pool.h>
#include <umf/memory_provider.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the table of functions of this pool, for umfPoolCreate. The table is static. */
const umf_memory_pool_ops_t *umfProxyPoolOps(void);

#ifdef __cplusplus
}
#endif

#endif
