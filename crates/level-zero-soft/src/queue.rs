//! Queues.

use std::sync::Arc;
use std::time::Duration;

use level_zero_sys::*;

use crate::entry::{Done, entry};
use crate::pointer::{array, get, put};
use crate::state::{Device, handle, number};
use soft_device::{Command, Stream, Timeout};

/// A group of queues that can do the same.
pub(crate) struct Group {
    pub(crate) flags: ze_command_queue_group_property_flags_t,
    pub(crate) queues: u32,
    /// The longest pattern of a fill, in bytes.
    pub(crate) pattern: usize,
}

/// The groups of every device, by ordinal.
pub(crate) const GROUPS: [Group; 2] = [
    Group {
        flags: ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE | ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY,
        queues: 4,
        pattern: 4096,
    },
    Group { flags: ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY, queues: 2, pattern: 16 },
];

/// How a queue was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    pub(crate) ordinal: u32,
    pub(crate) mode: ze_command_queue_mode_t,
}

impl Traits {
    pub(crate) fn new(desc: &ze_command_queue_desc_t) -> Done<Self> {
        let known = ZE_COMMAND_QUEUE_FLAG_EXPLICIT_ONLY
            | ZE_COMMAND_QUEUE_FLAG_IN_ORDER
            | ZE_COMMAND_QUEUE_FLAG_COPY_OFFLOAD_HINT;
        let is_known = desc.flags & !known == 0
            && desc.mode <= ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS
            && desc.priority <= ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_HIGH;
        if !is_known {
            return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
        }
        let group = GROUPS.get(desc.ordinal as usize).filter(|group| desc.index < group.queues);
        if group.is_none() {
            return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        Ok(Self { ordinal: desc.ordinal, mode: desc.mode })
    }

    pub(crate) fn is_synchronous(&self) -> bool {
        self.mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS
    }
}

pub(crate) struct Queue {
    pub(crate) device: Arc<Device>,
    pub(crate) traits: Traits,
    pub(crate) stream: Stream,
}

/// What the interface means by a timeout in nanoseconds.
pub(crate) fn timeout(nanoseconds: u64) -> Timeout {
    if nanoseconds == u64::MAX { Timeout::Never } else { Timeout::After(Duration::from_nanos(nanoseconds)) }
}

pub(crate) unsafe extern "C" fn create(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    desc: *const ze_command_queue_desc_t,
    queue: *mut ze_command_queue_handle_t,
) -> ze_result_t {
    entry("zeCommandQueueCreate", |state| {
        state.context(context)?;
        let device = state.device(device)?;
        // SAFETY: pointers of the application.
        unsafe {
            let traits = Traits::new(&get(desc)?)?;
            put(queue, ze_command_queue_handle_t::NULL)?;
            let stream = Stream::new(Arc::clone(&device.health), state.settings.delay);
            let made = state.queues.insert(Queue { device, traits, stream });
            put(queue, ze_command_queue_handle_t(handle(made)))
        }
    })
}

pub(crate) unsafe extern "C" fn destroy(queue: ze_command_queue_handle_t) -> ze_result_t {
    entry("zeCommandQueueDestroy", |state| Ok(state.queues.remove(number(queue.0)).map(drop)?))
}

pub(crate) unsafe extern "C" fn execute(
    queue: ze_command_queue_handle_t,
    count: u32,
    lists: *mut ze_command_list_handle_t,
    fence: ze_fence_handle_t,
) -> ze_result_t {
    entry("zeCommandQueueExecuteCommandLists", |state| {
        let queue = state.queues.get(number(queue.0))?;
        queue.device.health.check()?;
        let fence = if fence.is_null() { None } else { Some(state.fences.get(number(fence.0))?) };
        if count == 0 {
            return Err(ZE_RESULT_ERROR_INVALID_SIZE.into());
        }
        // SAFETY: pointers of the application.
        let lists = unsafe { array(lists.cast_const(), count, ZE_RESULT_ERROR_INVALID_NULL_POINTER) }?;
        let mut commands = Vec::new();
        for list in lists {
            let list = state.lists.get(number(list.0))?;
            if list.ordinal() != queue.traits.ordinal {
                return Err(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE.into());
            }
            commands.extend(list.closed()?);
        }
        commands.extend(fence.map(|fence| Command::nothing(Vec::new(), Some(Arc::clone(&fence.0)))));
        queue.stream.submit(commands)?;
        if queue.traits.is_synchronous() {
            queue.stream.wait(Timeout::Never)?;
        }
        Ok(())
    })
}
