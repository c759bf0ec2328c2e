//! Drivers and devices: initialization and properties, those of extensions included.

use core::ffi::c_void;

/// Bytes of a driver's identifier.
pub const ZE_MAX_DRIVER_UUID_SIZE: usize = 16;
/// Bytes of an extension's name, including the terminating zero.
pub const ZE_MAX_EXTENSION_NAME: usize = 256;
/// Bytes of a device's identifier.
pub const ZE_MAX_DEVICE_UUID_SIZE: usize = 16;
/// Bytes of a device's name, including the terminating zero.
pub const ZE_MAX_DEVICE_NAME: usize = 256;
/// The maximum number of sub-group sizes of a device.
pub const ZE_SUBGROUPSIZE_COUNT: usize = 8;
/// Bytes of the identifier of native kernels.
pub const ZE_MAX_NATIVE_KERNEL_UUID_SIZE: usize = 16;
/// The size of a cache line.
pub const ZE_CACHELINE_SIZE_EXT_NAME: &str = "ZE_extension_device_cache_line_size";
/// The technology of a memory.
pub const ZE_DEVICE_MEMORY_PROPERTIES_EXT_NAME: &str = "ZE_extension_device_memory_properties";
/// Free policies.
pub const ZE_MEMORY_FREE_POLICIES_EXT_NAME: &str = "ZE_extension_memory_free_policies";
/// Allocations beyond `maxMemAllocSize`.
pub const ZE_RELAXED_ALLOCATION_LIMITS_EXT_NAME: &str = "ZE_extension_relaxed_allocation_limits";
/// Allocations beyond `maxMemAllocSize`; the older extension.
pub const ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME: &str = "ZE_experimental_relaxed_allocation_limits";

enums! {
    /// The type of a device.
    ze_device_type_t {
        ZE_DEVICE_TYPE_GPU = 1,
        ZE_DEVICE_TYPE_CPU = 2,
        ZE_DEVICE_TYPE_FPGA = 3,
        ZE_DEVICE_TYPE_MCA = 4,
        ZE_DEVICE_TYPE_VPU = 5,
    }
    /// The technology of a memory.
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
    /// The unit of a bandwidth.
    ze_bandwidth_unit_t {
        ZE_BANDWIDTH_UNIT_UNKNOWN = 0,
        ZE_BANDWIDTH_UNIT_BYTES_PER_NANOSEC = 1,
        ZE_BANDWIDTH_UNIT_BYTES_PER_CLOCK = 2,
    }
}

flags! {
    /// The drivers that `zeInit` initializes.
    ze_init_flags_t {
        ZE_INIT_FLAG_GPU_ONLY = 1 << 0,
        ZE_INIT_FLAG_VPU_ONLY = 1 << 1,
    }
    /// The drivers that `zeInitDrivers` initializes.
    ze_init_driver_type_flags_t {
        ZE_INIT_DRIVER_TYPE_FLAG_GPU = 1 << 0,
        ZE_INIT_DRIVER_TYPE_FLAG_NPU = 1 << 1,
    }
    /// When `zeMemFreeExt` releases memory.
    ze_driver_memory_free_policy_ext_flags_t {
        ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE = 1 << 0,
        ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_DEFER_FREE = 1 << 1,
    }
    /// Traits of a device.
    ze_device_property_flags_t {
        ZE_DEVICE_PROPERTY_FLAG_INTEGRATED = 1 << 0,
        ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE = 1 << 1,
        ZE_DEVICE_PROPERTY_FLAG_ECC = 1 << 2,
        ZE_DEVICE_PROPERTY_FLAG_ONDEMANDPAGING = 1 << 3,
    }
    /// Types that kernels support.
    ze_device_module_flags_t {
        ZE_DEVICE_MODULE_FLAG_FP16 = 1 << 0,
        ZE_DEVICE_MODULE_FLAG_FP64 = 1 << 1,
        ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS = 1 << 2,
        ZE_DEVICE_MODULE_FLAG_DP4A = 1 << 3,
    }
    /// The floating-point capabilities of kernels.
    ze_device_fp_flags_t {
        ZE_DEVICE_FP_FLAG_DENORM = 1 << 0,
        ZE_DEVICE_FP_FLAG_INF_NAN = 1 << 1,
        ZE_DEVICE_FP_FLAG_ROUND_TO_NEAREST = 1 << 2,
        ZE_DEVICE_FP_FLAG_ROUND_TO_ZERO = 1 << 3,
        ZE_DEVICE_FP_FLAG_ROUND_TO_INF = 1 << 4,
        ZE_DEVICE_FP_FLAG_FMA = 1 << 5,
        ZE_DEVICE_FP_FLAG_ROUNDED_DIVIDE_SQRT = 1 << 6,
        ZE_DEVICE_FP_FLAG_SOFT_FLOAT = 1 << 7,
    }
    /// The capabilities of a command queue group.
    ze_command_queue_group_property_flags_t {
        ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE = 1 << 0,
        ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY = 1 << 1,
        ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COOPERATIVE_KERNELS = 1 << 2,
        ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_METRICS = 1 << 3,
    }
    /// Traits of a memory.
    ze_device_memory_property_flags_t {
        ZE_DEVICE_MEMORY_PROPERTY_FLAG_TBD = 1 << 0,
    }
    /// The supported access to memory.
    ze_memory_access_cap_flags_t {
        ZE_MEMORY_ACCESS_CAP_FLAG_RW = 1 << 0,
        ZE_MEMORY_ACCESS_CAP_FLAG_ATOMIC = 1 << 1,
        ZE_MEMORY_ACCESS_CAP_FLAG_CONCURRENT = 1 << 2,
        ZE_MEMORY_ACCESS_CAP_FLAG_CONCURRENT_ATOMIC = 1 << 3,
    }
    /// Traits of a cache.
    ze_device_cache_property_flags_t {
        ZE_DEVICE_CACHE_PROPERTY_FLAG_USER_CONTROL = 1 << 0,
    }
    /// The access of a device to a peer's memory.
    ze_device_p2p_property_flags_t {
        ZE_DEVICE_P2P_PROPERTY_FLAG_ACCESS = 1 << 0,
        ZE_DEVICE_P2P_PROPERTY_FLAG_ATOMICS = 1 << 1,
    }
    /// Types of handles for exchanging memory with other interfaces.
    ze_external_memory_type_flags_t {
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD = 1 << 0,
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF = 1 << 1,
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_WIN32 = 1 << 2,
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_WIN32_KMT = 1 << 3,
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_D3D11_TEXTURE = 1 << 4,
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_D3D11_TEXTURE_KMT = 1 << 5,
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_D3D12_HEAP = 1 << 6,
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_D3D12_RESOURCE = 1 << 7,
    }
}

plain! {
    /// A driver's identifier.
    ze_driver_uuid_t {
        id: [u8; ZE_MAX_DRIVER_UUID_SIZE],
    }
    /// A supported extension.
    ze_driver_extension_properties_t {
        name: [u8; ZE_MAX_EXTENSION_NAME],
        version: u32,
    }
    /// A device's identifier.
    ze_device_uuid_t {
        id: [u8; ZE_MAX_DEVICE_UUID_SIZE],
    }
    /// The identifier of native kernels.
    ze_native_kernel_uuid_t {
        id: [u8; ZE_MAX_NATIVE_KERNEL_UUID_SIZE],
    }
}

chained! {
    /// The parameters of `zeInitDrivers`.
    ze_init_driver_type_desc_t: ZE_STRUCTURE_TYPE_INIT_DRIVER_TYPE_DESC {
        pNext: *const c_void,
        flags: ze_init_driver_type_flags_t,
    }
    /// Identifier and version of a driver.
    ze_driver_properties_t: ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES {
        pNext: *mut c_void,
        uuid: ze_driver_uuid_t,
        driverVersion: u32,
    }
    /// The free policies that `zeMemFreeExt` supports.
    ze_driver_memory_free_ext_properties_t: ZE_STRUCTURE_TYPE_DRIVER_MEMORY_FREE_EXT_PROPERTIES {
        pNext: *mut c_void,
        freePolicies: ze_driver_memory_free_policy_ext_flags_t,
    }
    /// The properties of a device.
    ze_device_properties_t: ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES {
        pNext: *mut c_void,
        r#type: ze_device_type_t,
        vendorId: u32,
        deviceId: u32,
        flags: ze_device_property_flags_t,
        subdeviceId: u32,
        coreClockRate: u32,
        maxMemAllocSize: u64,
        maxHardwareContexts: u32,
        maxCommandQueuePriority: u32,
        numThreadsPerEU: u32,
        physicalEUSimdWidth: u32,
        numEUsPerSubslice: u32,
        numSubslicesPerSlice: u32,
        numSlices: u32,
        timerResolution: u64,
        timestampValidBits: u32,
        kernelTimestampValidBits: u32,
        uuid: ze_device_uuid_t,
        name: [u8; ZE_MAX_DEVICE_NAME],
    }
    /// Group sizes of kernels.
    ze_device_compute_properties_t: ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES {
        pNext: *mut c_void,
        maxTotalGroupSize: u32,
        maxGroupSizeX: u32,
        maxGroupSizeY: u32,
        maxGroupSizeZ: u32,
        maxGroupCountX: u32,
        maxGroupCountY: u32,
        maxGroupCountZ: u32,
        maxSharedLocalMemory: u32,
        numSubGroupSizes: u32,
        subGroupSizes: [u32; ZE_SUBGROUPSIZE_COUNT],
    }
    /// The module capabilities of a device.
    ze_device_module_properties_t: ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES {
        pNext: *mut c_void,
        spirvVersionSupported: u32,
        flags: ze_device_module_flags_t,
        fp16flags: ze_device_fp_flags_t,
        fp32flags: ze_device_fp_flags_t,
        fp64flags: ze_device_fp_flags_t,
        maxArgumentsSize: u32,
        printfBufferSize: u32,
        nativeKernelSupported: ze_native_kernel_uuid_t,
    }
    /// A command queue group.
    ze_command_queue_group_properties_t: ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES {
        pNext: *mut c_void,
        flags: ze_command_queue_group_property_flags_t,
        maxMemoryFillPatternSize: usize,
        numQueues: u32,
    }
    /// One of a device's memories; its position is the ordinal.
    ze_device_memory_properties_t: ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES {
        pNext: *mut c_void,
        flags: ze_device_memory_property_flags_t,
        maxClockRate: u32,
        maxBusWidth: u32,
        totalSize: u64,
        name: [u8; ZE_MAX_DEVICE_NAME],
    }
    /// The access of a device to each kind of allocation.
    ze_device_memory_access_properties_t: ZE_STRUCTURE_TYPE_DEVICE_MEMORY_ACCESS_PROPERTIES {
        pNext: *mut c_void,
        hostAllocCapabilities: ze_memory_access_cap_flags_t,
        deviceAllocCapabilities: ze_memory_access_cap_flags_t,
        sharedSingleDeviceAllocCapabilities: ze_memory_access_cap_flags_t,
        sharedCrossDeviceAllocCapabilities: ze_memory_access_cap_flags_t,
        sharedSystemAllocCapabilities: ze_memory_access_cap_flags_t,
    }
    /// One of a device's caches.
    ze_device_cache_properties_t: ZE_STRUCTURE_TYPE_DEVICE_CACHE_PROPERTIES {
        pNext: *mut c_void,
        flags: ze_device_cache_property_flags_t,
        cacheSize: usize,
    }
    /// Limits of images.
    ze_device_image_properties_t: ZE_STRUCTURE_TYPE_DEVICE_IMAGE_PROPERTIES {
        pNext: *mut c_void,
        maxImageDims1D: u32,
        maxImageDims2D: u32,
        maxImageDims3D: u32,
        maxImageBufferSize: u64,
        maxImageArraySlices: u32,
        maxSamplers: u32,
        maxReadImageArgs: u32,
        maxWriteImageArgs: u32,
    }
    /// The handle types in which memory and images can be imported and exported.
    ze_device_external_memory_properties_t: ZE_STRUCTURE_TYPE_DEVICE_EXTERNAL_MEMORY_PROPERTIES {
        pNext: *mut c_void,
        memoryAllocationImportTypes: ze_external_memory_type_flags_t,
        memoryAllocationExportTypes: ze_external_memory_type_flags_t,
        imageImportTypes: ze_external_memory_type_flags_t,
        imageExportTypes: ze_external_memory_type_flags_t,
    }
    /// The access of a device to a peer's memory.
    ze_device_p2p_properties_t: ZE_STRUCTURE_TYPE_DEVICE_P2P_PROPERTIES {
        pNext: *mut c_void,
        flags: ze_device_p2p_property_flags_t,
    }
    /// The technology and the bandwidth of a memory.
    ze_device_memory_ext_properties_t: ZE_STRUCTURE_TYPE_DEVICE_MEMORY_EXT_PROPERTIES {
        pNext: *mut c_void,
        r#type: ze_device_memory_ext_type_t,
        physicalSize: u64,
        readBandwidth: u32,
        writeBandwidth: u32,
        bandwidthUnit: ze_bandwidth_unit_t,
    }
    /// The size of a cache line in bytes.
    ze_device_cache_line_size_ext_t: ZE_STRUCTURE_TYPE_DEVICE_CACHELINE_SIZE_EXT {
        pNext: *const c_void,
        cacheLineSize: usize,
    }
}
