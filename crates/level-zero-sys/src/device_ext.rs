//! What extensions tell about devices: structures for the `pNext` of the properties.

use core::ffi::c_void;

/// Bytes of a device's local identifier.
pub const ZE_MAX_DEVICE_LUID_SIZE_EXT: usize = 8;

enums! {
    /// What a memory is made of.
    ze_device_memory_ext_type_t {
        ZE_DEVICE_MEMORY_EXT_TYPE_HBM = 0,
        ZE_DEVICE_MEMORY_EXT_TYPE_HBM2 = 1,
        ZE_DEVICE_MEMORY_EXT_TYPE_DDR = 2,
        ZE_DEVICE_MEMORY_EXT_TYPE_DDR2 = 3,
        ZE_DEVICE_MEMORY_EXT_TYPE_DDR3 = 4,
        ZE_DEVICE_MEMORY_EXT_TYPE_DDR4 = 5,
        ZE_DEVICE_MEMORY_EXT_TYPE_DDR5 = 6,
        ZE_DEVICE_MEMORY_EXT_TYPE_LPDDR = 7,
        ZE_DEVICE_MEMORY_EXT_TYPE_LPDDR3 = 8,
        ZE_DEVICE_MEMORY_EXT_TYPE_LPDDR4 = 9,
        ZE_DEVICE_MEMORY_EXT_TYPE_LPDDR5 = 10,
        ZE_DEVICE_MEMORY_EXT_TYPE_SRAM = 11,
        ZE_DEVICE_MEMORY_EXT_TYPE_L1 = 12,
        ZE_DEVICE_MEMORY_EXT_TYPE_L3 = 13,
        ZE_DEVICE_MEMORY_EXT_TYPE_GRF = 14,
        ZE_DEVICE_MEMORY_EXT_TYPE_SLM = 15,
        ZE_DEVICE_MEMORY_EXT_TYPE_GDDR4 = 16,
        ZE_DEVICE_MEMORY_EXT_TYPE_GDDR5 = 17,
        ZE_DEVICE_MEMORY_EXT_TYPE_GDDR5X = 18,
        ZE_DEVICE_MEMORY_EXT_TYPE_GDDR6 = 19,
        ZE_DEVICE_MEMORY_EXT_TYPE_GDDR6X = 20,
        ZE_DEVICE_MEMORY_EXT_TYPE_GDDR7 = 21,
        ZE_DEVICE_MEMORY_EXT_TYPE_HBM2E = 22,
        ZE_DEVICE_MEMORY_EXT_TYPE_HBM3 = 23,
        ZE_DEVICE_MEMORY_EXT_TYPE_HBM3E = 24,
        ZE_DEVICE_MEMORY_EXT_TYPE_HBM4 = 25,
        ZE_DEVICE_MEMORY_EXT_TYPE_LPDDR5X = 26,
        ZE_DEVICE_MEMORY_EXT_TYPE_LPDDR6 = 27,
    }
    /// What a bandwidth is counted in.
    ze_bandwidth_unit_t {
        ZE_BANDWIDTH_UNIT_UNKNOWN = 0,
        ZE_BANDWIDTH_UNIT_BYTES_PER_NANOSEC = 1,
        ZE_BANDWIDTH_UNIT_BYTES_PER_CLOCK = 2,
    }
    /// What a latency is counted in.
    ze_latency_unit_t {
        ZE_LATENCY_UNIT_UNKNOWN = 0,
        ZE_LATENCY_UNIT_NANOSEC = 1,
        ZE_LATENCY_UNIT_CLOCK = 2,
        ZE_LATENCY_UNIT_HOP = 3,
    }
    /// A level of cache that can be reserved.
    ze_cache_ext_region_t {
        ZE_CACHE_EXT_REGION_ZE_CACHE_REGION_DEFAULT = 0,
        ZE_CACHE_EXT_REGION_ZE_CACHE_RESERVE_REGION = 1,
        ZE_CACHE_EXT_REGION_ZE_CACHE_NON_RESERVED_REGION = 2,
        ZE_CACHE_EXT_REGION_DEFAULT = 0,
        ZE_CACHE_EXT_REGION_RESERVED = 1,
        ZE_CACHE_EXT_REGION_NON_RESERVED = 2,
    }
    /// What a page mapped read-only does to a write.
    ze_device_readonly_memory_capability_t {
        ZE_DEVICE_READONLY_MEMORY_CAPABILITY_NONE = 0,
        ZE_DEVICE_READONLY_MEMORY_CAPABILITY_HINT = 1,
        ZE_DEVICE_READONLY_MEMORY_CAPABILITY_ENFORCED = 2,
    }
}

plain! {
    /// A device's local identifier.
    ze_device_luid_ext_t {
        id: [u8; ZE_MAX_DEVICE_LUID_SIZE_EXT],
    }
    /// Where a device is on the PCI bus.
    ze_pci_address_ext_t {
        domain: u32,
        bus: u32,
        device: u32,
        function: u32,
    }
    /// How fast a device's PCI link is.
    ze_pci_speed_ext_t {
        genVersion: i32,
        width: i32,
        maxBandwidth: i64,
    }
}

chained! {
    /// How fast a peer is reached.
    ze_device_p2p_bandwidth_exp_properties_t: ZE_STRUCTURE_TYPE_DEVICE_P2P_BANDWIDTH_EXP_PROPERTIES {
        pNext: *mut c_void,
        logicalBandwidth: u32,
        physicalBandwidth: u32,
        bandwidthUnit: ze_bandwidth_unit_t,
        logicalLatency: u32,
        physicalLatency: u32,
        latencyUnit: ze_latency_unit_t,
    }
    /// How fast a queue group copies.
    ze_copy_bandwidth_exp_properties_t: ZE_STRUCTURE_TYPE_COPY_BANDWIDTH_EXP_PROPERTIES {
        pNext: *mut c_void,
        copyBandwidth: u32,
        copyBandwidthUnit: ze_bandwidth_unit_t,
    }
    /// A device's local identifier.
    ze_device_luid_ext_properties_t: ZE_STRUCTURE_TYPE_DEVICE_LUID_EXT_PROPERTIES {
        pNext: *mut c_void,
        luid: ze_device_luid_ext_t,
        nodeMask: u32,
    }
    /// What a memory is made of, and how fast it is.
    ze_device_memory_ext_properties_t: ZE_STRUCTURE_TYPE_DEVICE_MEMORY_EXT_PROPERTIES {
        pNext: *mut c_void,
        r#type: ze_device_memory_ext_type_t,
        physicalSize: u64,
        readBandwidth: u32,
        writeBandwidth: u32,
        bandwidthUnit: ze_bandwidth_unit_t,
    }
    /// The version of a device's design.
    ze_device_ip_version_ext_t: ZE_STRUCTURE_TYPE_DEVICE_IP_VERSION_EXT {
        pNext: *const c_void,
        ipVersion: u32,
    }
    /// How many execution units a device has.
    ze_eu_count_ext_t: ZE_STRUCTURE_TYPE_EU_COUNT_EXT {
        pNext: *const c_void,
        numTotalEUs: u32,
    }
    /// The size of a cache line in bytes.
    ze_device_cache_line_size_ext_t: ZE_STRUCTURE_TYPE_DEVICE_CACHELINE_SIZE_EXT {
        pNext: *const c_void,
        cacheLineSize: usize,
    }
    /// How many bytes of a device's memory are usable now.
    ze_device_usablemem_size_ext_properties_t: ZE_STRUCTURE_TYPE_DEVICE_USABLEMEM_SIZE_EXT_PROPERTIES {
        pNext: *mut c_void,
        currUsableMemSize: u64,
    }
    /// Widths of vectors.
    ze_device_vector_width_properties_ext_t: ZE_STRUCTURE_TYPE_DEVICE_VECTOR_WIDTH_PROPERTIES_EXT {
        pNext: *mut c_void,
        vector_width_size: u32,
        preferred_vector_width_char: u32,
        preferred_vector_width_short: u32,
        preferred_vector_width_int: u32,
        preferred_vector_width_long: u32,
        preferred_vector_width_float: u32,
        preferred_vector_width_double: u32,
        preferred_vector_width_half: u32,
        native_vector_width_char: u32,
        native_vector_width_short: u32,
        native_vector_width_int: u32,
        native_vector_width_long: u32,
        native_vector_width_float: u32,
        native_vector_width_double: u32,
        native_vector_width_half: u32,
    }
    /// Where a device is on the PCI bus, and how fast its link is.
    ze_pci_ext_properties_t: ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES {
        pNext: *mut c_void,
        address: ze_pci_address_ext_t,
        maxSpeed: ze_pci_speed_ext_t,
    }
    /// How much cache can be reserved.
    ze_cache_reservation_ext_desc_t: ZE_STRUCTURE_TYPE_CACHE_RESERVATION_EXT_DESC {
        pNext: *const c_void,
        maxCacheReservationSize: usize,
    }
    /// What a page mapped read-only does to a write.
    ze_device_readonly_memory_ext_properties_t: ZE_STRUCTURE_TYPE_DEVICE_READONLY_MEMORY_EXT_PROPERTIES {
        pNext: *mut c_void,
        readonlyCapability: ze_device_readonly_memory_capability_t,
    }
}
