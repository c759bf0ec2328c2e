//! Command lists: recorded ones, which a queue executes, and immediate ones, which execute each command at once.

use std::sync::{Arc, Mutex};

use level_zero_sys::*;

use crate::entry::{Done, Refusal, entry};
use crate::pointer::{get, put};
use crate::queue::{GROUPS, Traits, timeout};
use crate::state::{Device, State, handle, number};
use soft_device::{Command, Event, Stream, Timeout, Work, lock};

pub(crate) struct List {
    pub(crate) context: ze_context_handle_t,
    pub(crate) device: Arc<Device>,
    kind: Kind,
}

enum Kind {
    Immediate { traits: Traits, stream: Stream },
    Recorded { ordinal: u32, flags: ze_command_list_flags_t, record: Mutex<Record> },
}

#[derive(Clone, Default)]
struct Record {
    commands: Arc<Vec<Command>>,
    is_closed: bool,
}

/// A command that only waits and signals.
pub(crate) fn nothing(wait: Vec<Event>, signal: Option<Event>) -> Command {
    Command { wait, work: Work::Nothing, signal }
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
            Kind::Immediate { .. } => self.submit(vec![command]),
            Kind::Recorded { record, .. } => {
                let mut record = lock(record);
                if record.is_closed {
                    return Err(Refusal::new(
                        ZE_RESULT_ERROR_INVALID_ARGUMENT,
                        "the list is closed: reset it first",
                    ));
                }
                Arc::make_mut(&mut record.commands).push(command);
                Ok(())
            }
        }
    }

    /// Executes commands; for immediate lists only.
    pub(crate) fn submit(&self, commands: Vec<Command>) -> Done {
        let Kind::Immediate { traits, stream } = &self.kind else {
            return Err(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE.into());
        };
        stream.submit(Arc::new(commands), None)?;
        if traits.is_synchronous() {
            stream.wait(Timeout::Never)?;
        }
        Ok(())
    }

    /// The commands of a list that is closed, as a queue executes them.
    pub(crate) fn closed(&self) -> Done<Arc<Vec<Command>>> {
        let Kind::Recorded { record, .. } = &self.kind else {
            return Err(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE.into());
        };
        let record = lock(record);
        if !record.is_closed {
            return Err(Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, "the list is not closed"));
        }
        Ok(Arc::clone(&record.commands))
    }

    /// Waits for what an immediate list executes.
    pub(crate) fn wait(&self, timeout: Timeout) -> Done {
        match &self.kind {
            Kind::Immediate { stream, .. } => Ok(stream.wait(timeout)?),
            Kind::Recorded { .. } => {
                Err(Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, "the list is not immediate"))
            }
        }
    }

    fn immediate(&self) -> Done<&Traits> {
        match &self.kind {
            Kind::Immediate { traits, .. } => Ok(traits),
            Kind::Recorded { .. } => {
                Err(Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, "the list is not immediate"))
            }
        }
    }
}

/// Waits for everything that a device was given to do.
pub(crate) fn wait_for_device(state: &State, device: &Device) -> Done {
    for list in state.lists.all().iter().filter(|list| list.device.root() == device.root()) {
        if let Kind::Immediate { stream, .. } = &list.kind {
            stream.wait(Timeout::Never)?;
        }
    }
    for queue in state.queues.all().iter().filter(|queue| queue.device.root() == device.root()) {
        queue.stream.wait(Timeout::Never)?;
    }
    Ok(())
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
                let why = format!("there is no group {ordinal} of queues");
                return Err(Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, why));
            }
            let kind = Kind::Recorded { ordinal, flags: desc.flags, record: Mutex::default() };
            let made = state.lists.insert(List { context, device, kind });
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
            let made = state.lists.insert(List { context, device, kind: Kind::Immediate { traits, stream } });
            put(list, ze_command_list_handle_t(handle(made)))
        }
    })
}

pub(crate) unsafe extern "C" fn create_clone(
    list: ze_command_list_handle_t,
    clone: *mut ze_command_list_handle_t,
) -> ze_result_t {
    entry("zeCommandListCreateCloneExp", |state| {
        let list = state.lists.get(number(list.0))?;
        let Kind::Recorded { ordinal, flags, record } = &list.kind else {
            return Err(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE.into());
        };
        let kind =
            Kind::Recorded { ordinal: *ordinal, flags: *flags, record: Mutex::new(lock(record).clone()) };
        // SAFETY: a pointer of the application.
        unsafe {
            put(clone, ze_command_list_handle_t::NULL)?;
            let device = Arc::clone(&list.device);
            let made = state.lists.insert(List { context: list.context, device, kind });
            put(clone, ze_command_list_handle_t(handle(made)))
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

/// Writes something that a list is asked for.
///
/// # Safety
/// `pointer` is null or valid for a write.
unsafe fn tell<T>(
    function: &'static str,
    list: ze_command_list_handle_t,
    pointer: *mut T,
    what: impl FnOnce(&List) -> Done<T>,
) -> ze_result_t {
    entry(function, |state| {
        let list = state.lists.get(number(list.0))?;
        // SAFETY: the caller's promise.
        unsafe { put(pointer, what(&list)?) }
    })
}

pub(crate) unsafe extern "C" fn get_device(
    list: ze_command_list_handle_t,
    to: *mut ze_device_handle_t,
) -> ze_result_t {
    // SAFETY: a pointer of the application.
    unsafe { tell("zeCommandListGetDeviceHandle", list, to, |list| Ok(list.device.handle)) }
}

pub(crate) unsafe extern "C" fn get_context(
    list: ze_command_list_handle_t,
    to: *mut ze_context_handle_t,
) -> ze_result_t {
    // SAFETY: a pointer of the application.
    unsafe { tell("zeCommandListGetContextHandle", list, to, |list| Ok(list.context)) }
}

pub(crate) unsafe extern "C" fn get_ordinal(list: ze_command_list_handle_t, to: *mut u32) -> ze_result_t {
    // SAFETY: a pointer of the application.
    unsafe { tell("zeCommandListGetOrdinal", list, to, |list| Ok(list.ordinal())) }
}

pub(crate) unsafe extern "C" fn get_index(list: ze_command_list_handle_t, to: *mut u32) -> ze_result_t {
    // SAFETY: a pointer of the application.
    unsafe { tell("zeCommandListImmediateGetIndex", list, to, |list| Ok(list.immediate()?.index)) }
}

pub(crate) unsafe extern "C" fn is_immediate(
    list: ze_command_list_handle_t,
    to: *mut ze_bool_t,
) -> ze_result_t {
    // SAFETY: a pointer of the application.
    unsafe { tell("zeCommandListIsImmediate", list, to, |list| Ok(u8::from(list.immediate().is_ok()))) }
}

pub(crate) unsafe extern "C" fn get_flags(
    list: ze_command_list_handle_t,
    to: *mut ze_command_list_flags_t,
) -> ze_result_t {
    let flags = |list: &List| match &list.kind {
        Kind::Recorded { flags, .. } => Ok(*flags),
        Kind::Immediate { .. } => Err(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE.into()),
    };
    // SAFETY: a pointer of the application.
    unsafe { tell("zeCommandListGetFlags", list, to, flags) }
}

pub(crate) unsafe extern "C" fn immediate_get_flags(
    list: ze_command_list_handle_t,
    to: *mut ze_command_queue_flags_t,
) -> ze_result_t {
    // SAFETY: a pointer of the application.
    unsafe { tell("zeCommandListImmediateGetFlags", list, to, |list| Ok(list.immediate()?.flags)) }
}

pub(crate) unsafe extern "C" fn immediate_get_mode(
    list: ze_command_list_handle_t,
    to: *mut ze_command_queue_mode_t,
) -> ze_result_t {
    // SAFETY: a pointer of the application.
    unsafe { tell("zeCommandListImmediateGetMode", list, to, |list| Ok(list.immediate()?.mode)) }
}

pub(crate) unsafe extern "C" fn immediate_get_priority(
    list: ze_command_list_handle_t,
    to: *mut ze_command_queue_priority_t,
) -> ze_result_t {
    // SAFETY: a pointer of the application.
    unsafe { tell("zeCommandListImmediateGetPriority", list, to, |list| Ok(list.immediate()?.priority)) }
}
