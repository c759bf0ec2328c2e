//! Names of extensions, as `zeDriverGetExtensionProperties` lists them.

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $text;)*
    };
}

names! {
    /// Bandwidth and latency of peers and copies.
    ZE_BANDWIDTH_PROPERTIES_EXP_NAME = "ZE_experimental_bandwidth_properties";
    /// The size of a cache line.
    ZE_CACHELINE_SIZE_EXT_NAME = "ZE_extension_device_cache_line_size";
    /// How much memory is usable now.
    ZE_DEVICE_USABLEMEM_SIZE_PROPERTIES_EXT_NAME = "ZE_extension_device_usablemem_size_properties";
    /// What a memory is made of.
    ZE_DEVICE_MEMORY_PROPERTIES_EXT_NAME = "ZE_extension_device_memory_properties";
    /// Times of events in the host's nanoseconds.
    ZE_EVENT_QUERY_KERNEL_TIMESTAMPS_EXT_NAME = "ZE_extension_event_query_kernel_timestamps";
    /// Memory of the process used by devices.
    ZE_EXTERNAL_MEMORY_MAPPING_EXT_NAME = "ZE_extension_external_memmap_sysmem";
    /// Who may open a handle.
    ZE_IPC_MEM_HANDLE_TYPE_EXT_NAME = "ZE_extension_ipc_mem_handle_type";
    /// Policies of freeing.
    ZE_MEMORY_FREE_POLICIES_EXT_NAME = "ZE_extension_memory_free_policies";
    /// Where a device is on the PCI bus.
    ZE_PCI_PROPERTIES_EXT_NAME = "ZE_extension_pci_properties";
    /// Allocations beyond `maxMemAllocSize`.
    ZE_RELAXED_ALLOCATION_LIMITS_EXT_NAME = "ZE_extension_relaxed_allocation_limits";
    /// Allocations beyond `maxMemAllocSize`; the older extension.
    ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME = "ZE_experimental_relaxed_allocation_limits";
    /// The parts of allocations that were divided.
    ZE_SUB_ALLOCATIONS_EXP_NAME = "ZE_experimental_sub_allocations";
    /// Pages that cannot be written to.
    ZE_VIRTUAL_MEM_READONLY_PROPERTIES_EXT_NAME = "ZE_extension_virtual_mem_readonly_properties";
}
