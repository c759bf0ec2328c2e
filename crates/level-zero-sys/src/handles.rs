//! The handles of objects. Only the driver knows what is behind one.

handles! {
    /// A driver.
    ze_driver_handle_t;
    /// A device or a sub-device.
    ze_device_handle_t;
    /// A context: what memory, queues and events belong to.
    ze_context_handle_t;
    /// A queue, which executes closed command lists in order.
    ze_command_queue_handle_t;
    /// A list of commands; an immediate one executes each at once.
    ze_command_list_handle_t;
    /// A fence: tells that lists of a queue are done.
    ze_fence_handle_t;
    /// A pool of events.
    ze_event_pool_handle_t;
    /// An event: signalled and waited for by commands and by the host.
    ze_event_handle_t;
    /// Physical memory, to be mapped into reserved addresses.
    ze_physical_mem_handle_t;
}
