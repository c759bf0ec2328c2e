/* Result codes, versions, and what several headers need. */

#ifndef UMF_RS_UMF_BASE_H
#define UMF_RS_UMF_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UMF_MAKE_VERSION(_major, _minor) (((_major) << 16) | ((_minor) & 0xffff))
#define UMF_MAJOR_VERSION(_ver) ((_ver) >> 16)
#define UMF_MINOR_VERSION(_ver) ((_ver) & 0xffff)
#define UMF_VERSION_CURRENT UMF_MAKE_VERSION(1, 0)

typedef enum umf_result_t {
    UMF_RESULT_SUCCESS = 0,
    UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY = 1,
    UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC = 2,
    UMF_RESULT_ERROR_INVALID_ARGUMENT = 3,
    UMF_RESULT_ERROR_INVALID_ALIGNMENT = 4,
    UMF_RESULT_ERROR_NOT_SUPPORTED = 5,
    UMF_RESULT_ERROR_USER_SPECIFIC = 6,
    UMF_RESULT_ERROR_DEPENDENCY_UNAVAILABLE = 7,
    UMF_RESULT_ERROR_OUT_OF_RESOURCES = 8,
    UMF_RESULT_ERROR_INVALID_CTL_PATH = 9,
    UMF_RESULT_ERROR_UNKNOWN = 0x7ffffffe,
} umf_result_t;

typedef struct umf_memory_properties_t *umf_memory_properties_handle_t;
typedef enum umf_memory_property_id_t {
    UMF_MEMORY_PROPERTY_INVALID = -1,
    UMF_MEMORY_PROPERTY_PROVIDER_HANDLE = 0,
    UMF_MEMORY_PROPERTY_POOL_HANDLE = 1,
    UMF_MEMORY_PROPERTY_BASE_ADDRESS = 10,
    UMF_MEMORY_PROPERTY_BASE_SIZE = 11,
    UMF_MEMORY_PROPERTY_BUFFER_ID = 12,
    UMF_MEMORY_PROPERTY_POINTER_TYPE = 20,
    UMF_MEMORY_PROPERTY_CONTEXT = 21,
    UMF_MEMORY_PROPERTY_DEVICE = 22,
    UMF_MEMORY_PROPERTY_MAX_RESERVED = 0x1000,
} umf_memory_property_id_t;

typedef enum umf_ctl_query_type {
    CTL_QUERY_READ,
    CTL_QUERY_WRITE,
    CTL_QUERY_RUNNABLE,
} umf_ctl_query_type_t;

typedef enum ctl_query_source {
    CTL_UNKNOWN_QUERY_SOURCE,
    CTL_QUERY_PROGRAMMATIC,
    CTL_QUERY_CONFIG_INPUT,
} umf_ctl_query_source_t;

#ifdef __cplusplus
}
#endif

#endif
