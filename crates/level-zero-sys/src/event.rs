//! Events, their pools and their times.

use core::ffi::c_void;

flags! {
    /// How a pool of events is used.
    ze_event_pool_flags_t {
        ZE_EVENT_POOL_FLAG_HOST_VISIBLE = 1 << 0,
        ZE_EVENT_POOL_FLAG_IPC = 1 << 1,
        ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP = 1 << 2,
        ZE_EVENT_POOL_FLAG_KERNEL_MAPPED_TIMESTAMP = 1 << 3,
    }
    /// Who is to see memory when an event is signalled or waited for.
    ze_event_scope_flags_t {
        ZE_EVENT_SCOPE_FLAG_SUBDEVICE = 1 << 0,
        ZE_EVENT_SCOPE_FLAG_DEVICE = 1 << 1,
        ZE_EVENT_SCOPE_FLAG_HOST = 1 << 2,
    }
    /// How a counter-based event is used.
    ze_event_counter_based_flags_t {
        ZE_EVENT_COUNTER_BASED_FLAG_IMMEDIATE = 1 << 0,
        ZE_EVENT_COUNTER_BASED_FLAG_NON_IMMEDIATE = 1 << 1,
        ZE_EVENT_COUNTER_BASED_FLAG_HOST_VISIBLE = 1 << 2,
        ZE_EVENT_COUNTER_BASED_FLAG_IPC = 1 << 3,
        ZE_EVENT_COUNTER_BASED_FLAG_DEVICE_TIMESTAMP = 1 << 4,
        ZE_EVENT_COUNTER_BASED_FLAG_HOST_TIMESTAMP = 1 << 5,
        ZE_EVENT_COUNTER_BASED_FLAG_GRAPH_EXTERNAL = 1 << 6,
    }
    /// How an event is waited for.
    ze_event_sync_mode_flags_t {
        ZE_EVENT_SYNC_MODE_FLAG_LOW_POWER_WAIT = 1 << 0,
        ZE_EVENT_SYNC_MODE_FLAG_SIGNAL_INTERRUPT = 1 << 1,
        ZE_EVENT_SYNC_MODE_FLAG_EXTERNAL_INTERRUPT_WAIT = 1 << 2,
    }
    /// Which lists signal the counter-based events of a pool.
    ze_event_pool_counter_based_exp_flags_t {
        ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_IMMEDIATE = 1 << 0,
        ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_NON_IMMEDIATE = 1 << 1,
    }
    /// Which times of events can be asked for.
    ze_event_query_kernel_timestamps_ext_flags_t {
        ZE_EVENT_QUERY_KERNEL_TIMESTAMPS_EXT_FLAG_KERNEL = 1 << 0,
        ZE_EVENT_QUERY_KERNEL_TIMESTAMPS_EXT_FLAG_SYNCHRONIZED = 1 << 1,
    }
}

plain! {
    /// Begin and end, in ticks of the device.
    ze_kernel_timestamp_data_t {
        kernelStart: u64,
        kernelEnd: u64,
    }
    /// Times by the device's clock and by the context's.
    ze_kernel_timestamp_result_t {
        global: ze_kernel_timestamp_data_t,
        context: ze_kernel_timestamp_data_t,
    }
    /// Begin and end, in nanoseconds of the host.
    ze_synchronized_timestamp_data_ext_t {
        kernelStart: u64,
        kernelEnd: u64,
    }
    /// Times by the device's clock and by the context's, in nanoseconds of the host.
    ze_synchronized_timestamp_result_ext_t {
        global: ze_synchronized_timestamp_data_ext_t,
        context: ze_synchronized_timestamp_data_ext_t,
    }
}

chained! {
    /// How a pool of events is to be made.
    ze_event_pool_desc_t: ZE_STRUCTURE_TYPE_EVENT_POOL_DESC {
        pNext: *const c_void,
        flags: ze_event_pool_flags_t,
        count: u32,
    }
    /// How an event is to be made.
    ze_event_desc_t: ZE_STRUCTURE_TYPE_EVENT_DESC {
        pNext: *const c_void,
        index: u32,
        signal: ze_event_scope_flags_t,
        wait: ze_event_scope_flags_t,
    }
    /// Asks for counter-based events.
    ze_event_pool_counter_based_exp_desc_t: ZE_STRUCTURE_TYPE_COUNTER_BASED_EVENT_POOL_EXP_DESC {
        pNext: *const c_void,
        flags: ze_event_pool_counter_based_exp_flags_t,
    }
    /// How a counter-based event is to be made.
    ze_event_counter_based_desc_t: ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC {
        pNext: *const c_void,
        flags: ze_event_counter_based_flags_t,
        signal: ze_event_scope_flags_t,
        wait: ze_event_scope_flags_t,
    }
    /// The application's own memory behind a counter-based event.
    ze_event_counter_based_external_sync_allocation_desc_t: ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_EXTERNAL_SYNC_ALLOCATION_DESC {
        pNext: *const c_void,
        deviceAddress: *mut u64,
        hostAddress: *mut u64,
        completionValue: u64,
    }
    /// The application's own counter, which several signals add to.
    ze_event_counter_based_external_aggregate_storage_desc_t: ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_EXTERNAL_AGGREGATE_STORAGE_DESC {
        pNext: *const c_void,
        deviceAddress: *mut u64,
        incrementValue: u64,
        completionValue: u64,
    }
    /// How an event is to be waited for.
    ze_event_sync_mode_desc_t: ZE_STRUCTURE_TYPE_EVENT_SYNC_MODE_DESC {
        pNext: *const c_void,
        syncModeFlags: ze_event_sync_mode_flags_t,
        externalInterruptId: u32,
    }
    /// Which times of events can be asked for.
    ze_event_query_kernel_timestamps_ext_properties_t: ZE_STRUCTURE_TYPE_EVENT_QUERY_KERNEL_TIMESTAMPS_EXT_PROPERTIES {
        pNext: *mut c_void,
        flags: ze_event_query_kernel_timestamps_ext_flags_t,
    }
    /// Where times of an event are written.
    ze_event_query_kernel_timestamps_results_ext_properties_t: ZE_STRUCTURE_TYPE_EVENT_QUERY_KERNEL_TIMESTAMPS_RESULTS_EXT_PROPERTIES {
        pNext: *mut c_void,
        pKernelTimestampsBuffer: *mut ze_kernel_timestamp_result_t,
        pSynchronizedTimestampsBuffer: *mut ze_synchronized_timestamp_result_ext_t,
    }
}
