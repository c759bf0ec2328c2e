//! Command lists: recorded ones, which a queue executes, and immediate ones, which execute each command at once.

use std::sync::{Arc, Mutex};

use level_zero_sys::*;

use crate::entry::{Done, entry};
use crate::pointer::{get, put};
use crate::queue::{GROUPS, Traits, timeout};
use crate::state::{Device, handle, number};
use soft_device::{Command, Stream, Timeout, lock};

pub(crate) struct List {
    pub(crate) device: Arc<Device>,
    kind: Kind,
}

enum Kind {
    Immediate { traits: Traits, stream: Stream },
    Recorded { ordinal: u32, record: Mutex<Record> },
}

#[derive(Default)]
struct Record {
    commands: Vec<Command>,
    is_closed: bool,
}

impl List {
    pub(crate) fn ordinal(&self) -> u32 {
        match &self.kind {
            Kind::Immediate { traits, .. } => traits.ordinal,
            Kind::Recorded { ordinal, .. } => *ordinal,
        }
    }

    /// The longest pattern of a fill, in bytes.
    pub(crate) fn pattern(&self) -> usize {
        GROUPS.get(self.ordinal() as usize).map_or(0, |group| group.pattern)
    }

    /// Records a command, or executes it.
    pub(crate) fn append(&self, command: Command) -> Done {
        match &self.kind {
            Kind::Immediate { traits, stream } => {
                stream.submit(vec![command])?;
                if traits.is_synchronous() {
                    stream.wait(Timeout::Never)?;
                }
                Ok(())
            }
            Kind::Recorded { record, .. } => {
                let mut record = lock(record);
                if record.is_closed {
                    return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
                }
                record.commands.push(command);
                Ok(())
            }
        }
    }

    /// The commands of a list that is closed, as a queue executes them.
    pub(crate) fn closed(&self) -> Done<Vec<Command>> {
        let Kind::Recorded { record, .. } = &self.kind else {
            return Err(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE.into());
        };
        let record = lock(record);
        if !record.is_closed {
            return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        Ok(record.commands.clone())
    }

    /// Waits for what an immediate list executes.
    pub(crate) fn wait(&self, timeout: Timeout) -> Done {
        match &self.kind {
            Kind::Immediate { stream, .. } => Ok(stream.wait(timeout)?),
            Kind::Recorded { .. } => Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into()),
        }
    }
}

pub(crate) unsafe extern "C" fn create(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    desc: *const ze_command_list_desc_t,
    list: *mut ze_command_list_handle_t,
) -> ze_result_t {
    entry("zeCommandListCreate", |state| {
        state.context(context)?;
        let device = state.device(device)?;
        // SAFETY: pointers of the application.
        unsafe {
            let desc = get(desc)?;
            put(list, ze_command_list_handle_t::NULL)?;
            if desc.flags >= ZE_COMMAND_LIST_FLAG_COPY_OFFLOAD_HINT << 1 {
                return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
            }
            let ordinal = desc.commandQueueGroupOrdinal;
            if ordinal as usize >= GROUPS.len() {
                return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
            }
            let kind = Kind::Recorded { ordinal, record: Mutex::default() };
            let made = state.lists.insert(List { device, kind });
            put(list, ze_command_list_handle_t(handle(made)))
        }
    })
}

pub(crate) unsafe extern "C" fn create_immediate(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    desc: *const ze_command_queue_desc_t,
    list: *mut ze_command_list_handle_t,
) -> ze_result_t {
    entry("zeCommandListCreateImmediate", |state| {
        state.context(context)?;
        let device = state.device(device)?;
        // SAFETY: pointers of the application.
        unsafe {
            let traits = Traits::new(&get(desc)?)?;
            put(list, ze_command_list_handle_t::NULL)?;
            let stream = Stream::new(Arc::clone(&device.health), state.settings.delay);
            let made = state.lists.insert(List { device, kind: Kind::Immediate { traits, stream } });
            put(list, ze_command_list_handle_t(handle(made)))
        }
    })
}

pub(crate) unsafe extern "C" fn destroy(list: ze_command_list_handle_t) -> ze_result_t {
    entry("zeCommandListDestroy", |state| Ok(state.lists.remove(number(list.0)).map(drop)?))
}

pub(crate) unsafe extern "C" fn close(list: ze_command_list_handle_t) -> ze_result_t {
    entry("zeCommandListClose", |state| {
        let list = state.lists.get(number(list.0))?;
        if let Kind::Recorded { record, .. } = &list.kind {
            lock(record).is_closed = true;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn reset(list: ze_command_list_handle_t) -> ze_result_t {
    entry("zeCommandListReset", |state| {
        let list = state.lists.get(number(list.0))?;
        if let Kind::Recorded { record, .. } = &list.kind {
            *lock(record) = Record::default();
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn host_synchronize(
    list: ze_command_list_handle_t,
    nanoseconds: u64,
) -> ze_result_t {
    entry("zeCommandListHostSynchronize", |state| state.lists.get(number(list.0))?.wait(timeout(nanoseconds)))
}
