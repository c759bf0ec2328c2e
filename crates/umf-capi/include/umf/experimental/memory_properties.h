/* Properties of the memory at an address. */

#ifndef UMF_RS_UMF_EXPERIMENTAL_MEMORY_PROPERTIES_H
#define UMF_RS_UMF_EXPERIMENTAL_MEMORY_PROPERTIES_H

#include <umf/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns a handle for the properties of the memory at ptr. It is valid until the memory is freed. */
umf_result_t umfGetMemoryPropertiesHandle(const void *ptr, umf_memory_properties_handle_t *props_handle);

/* Returns the size of a property in bytes. */
umf_result_t umfGetMemoryPropertySize(umf_memory_properties_handle_t props_handle,
    umf_memory_property_id_t memory_property_id, size_t *size);

/* Writes a property. */
umf_result_t umfGetMemoryProperty(umf_memory_properties_handle_t props_handle,
    umf_memory_property_id_t memory_property_id, void *property_value, size_t max_property_size);

#ifdef __cplusplus
}
#endif

#endif
