/* Properties of the memory at an address. */

#ifndef UMF_RS_UMF_EXPERIMENTAL_MEMORY_PROPERTIES_H
#define UMF_RS_UMF_EXPERIMENTAL_MEMORY_PROPERTIES_H

#include <umf/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns a handle for the properties of the memory at ptr. It is valid until the memory is
 * freed.
 * @param ptr an address in memory of a pool or provider of this library.
 * @param props_handle where the handle is written; it needs no release.
 * Errors: INVALID_ARGUMENT for unknown memory. */
umf_result_t umfGetMemoryPropertiesHandle(const void *ptr, umf_memory_properties_handle_t *props_handle);

/* Returns the size of a property in bytes.
 * @param props_handle of umfGetMemoryPropertiesHandle.
 * @param memory_property_id the property.
 * @param size where the size is written.
 * Errors: INVALID_ARGUMENT if the memory has no such property. */
umf_result_t umfGetMemoryPropertySize(umf_memory_properties_handle_t props_handle,
    umf_memory_property_id_t memory_property_id, size_t *size);

/* Writes a property.
 * @param props_handle of umfGetMemoryPropertiesHandle.
 * @param memory_property_id the property.
 * @param property_value where the value is written.
 * @param max_property_size room there in bytes: at least the size of the property.
 * Errors: INVALID_ARGUMENT if the memory has no such property, or the room is too small. */
umf_result_t umfGetMemoryProperty(umf_memory_properties_handle_t props_handle,
    umf_memory_property_id_t memory_property_id, void *property_value, size_t max_property_size);

#ifdef __cplusplus
}
#endif

#endif
