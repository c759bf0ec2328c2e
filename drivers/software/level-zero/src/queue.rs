//! Command queues, command lists (recorded and immediate ones), fences and events.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use level_zero_sys::*;
use soft_device::{Command, Event, Stream, Timeout, Work, lock, now, read_argument, write_result};

use crate::append::Operation;
use crate::state::{Device, DriverState, ZeResult, array, entry, handle, number};

/// A command queue group.
pub(crate) struct Group {
    pub(crate) flags: ze_command_queue_group_property_flags_t,
    pub(crate) queues: u32,
    /// The longest fill pattern in bytes.
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

/// The creation parameters of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueTraits {
    pub(crate) ordinal: u32,
    pub(crate) mode: ze_command_queue_mode_t,
    pub(crate) is_in_order: bool,
}

impl QueueTraits {
    pub(crate) fn new(desc: &ze_command_queue_desc_t) -> ZeResult<Self> {
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
        let is_in_order = desc.flags & ZE_COMMAND_QUEUE_FLAG_IN_ORDER != 0;
        Ok(Self { ordinal: desc.ordinal, mode: desc.mode, is_in_order })
    }

    pub(crate) fn is_synchronous(&self) -> bool {
        self.mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS
    }
}

pub(crate) struct Queue {
    pub(crate) device: Arc<Device>,
    pub(crate) traits: QueueTraits,
    pub(crate) stream: Stream,
}

/// Converts a timeout of the interface: `u64::MAX` is no timeout.
pub(crate) fn timeout(nanoseconds: u64) -> Timeout {
    if nanoseconds == u64::MAX { Timeout::Never } else { Timeout::After(Duration::from_nanos(nanoseconds)) }
}

pub(crate) unsafe extern "C" fn create_queue(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    desc: *const ze_command_queue_desc_t,
    queue: *mut ze_command_queue_handle_t,
) -> ze_result_t {
    entry("zeCommandQueueCreate", |state| {
        state.context(context)?;
        let device = state.device(device)?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let traits = QueueTraits::new(&read_argument(desc)?)?;
            write_result(queue, ze_command_queue_handle_t::NULL)?;
            let stream = state.core.stream();
            let made = state.queues.insert(Queue { device, traits, stream });
            Ok(write_result(queue, ze_command_queue_handle_t(handle(made)))?)
        }
    })
}

pub(crate) unsafe extern "C" fn destroy_queue(queue: ze_command_queue_handle_t) -> ze_result_t {
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
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        let lists = unsafe { array(lists.cast_const(), count, ZE_RESULT_ERROR_INVALID_NULL_POINTER) }?;
        let mut recorded = Vec::new();
        for list in lists {
            let list = state.lists.get(number(list.0))?;
            if list.ordinal() != queue.traits.ordinal {
                return Err(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE.into());
            }
            for command in list.closed()? {
                let work = command.operation.work(state, &list)?;
                recorded.push((command, work));
            }
        }
        // No error is possible from here on: the events change their state together.
        let mut commands: Vec<_> = recorded.into_iter().map(|(command, work)| command.submit(work)).collect();
        commands.extend(fence.map(|fence| Command::marker(Vec::new(), Some(Arc::clone(&fence.0)))));
        queue.stream.submit(commands)?;
        if queue.traits.is_synchronous() {
            queue.stream.wait(Timeout::Never)?;
        }
        Ok(())
    })
}

pub(crate) struct List {
    pub(crate) device: Arc<Device>,
    kind: ListKind,
}

enum ListKind {
    Immediate { traits: QueueTraits, stream: Stream },
    Recorded { ordinal: u32, is_in_order: bool, record: Mutex<Recording> },
}

#[derive(Default)]
struct Recording {
    commands: Vec<ListCommand>,
    is_closed: bool,
}

/// A command of a list. A recorded one refers to memory by address: it does not keep the pages, and
/// each execution looks them up.
#[derive(Clone)]
struct ListCommand {
    wait: Vec<Arc<SignalPoint>>,
    operation: Operation,
    signal: Option<Arc<SignalPoint>>,
}

impl ListCommand {
    /// Returns the command for a stream, which has to execute it.
    fn submit(self, work: Work) -> Command {
        Command {
            wait: self.wait.iter().map(|point| point.event()).collect(),
            after: Vec::new(),
            work,
            signal: self.signal.map(|point| point.submit()),
        }
    }
}

impl List {
    pub(crate) fn ordinal(&self) -> u32 {
        match &self.kind {
            ListKind::Immediate { traits, .. } => traits.ordinal,
            ListKind::Recorded { ordinal, .. } => *ordinal,
        }
    }

    /// Returns whether it was created with the flag for in-order execution. All lists execute in
    /// order, but only these may signal counter-based events.
    fn is_in_order(&self) -> bool {
        match &self.kind {
            ListKind::Immediate { traits, .. } => traits.is_in_order,
            ListKind::Recorded { is_in_order, .. } => *is_in_order,
        }
    }

    /// Returns the longest fill pattern in bytes.
    pub(crate) fn pattern(&self) -> usize {
        GROUPS.get(self.ordinal() as usize).map_or(0, |group| group.pattern)
    }

    /// Checks that commands can be appended.
    pub(crate) fn check_open(&self) -> ZeResult {
        match &self.kind {
            ListKind::Recorded { record, .. } if lock(record).is_closed => {
                Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into())
            }
            _ => Ok(()),
        }
    }

    /// Records a command, or submits it if the list is immediate. After an error the event to
    /// signal is as before.
    pub(crate) fn append(
        &self,
        state: &DriverState,
        operation: Operation,
        (wait, signal): Events,
    ) -> ZeResult {
        self.check_open()?;
        let work = operation.work(state, self)?;
        let is_counter_based = signal.as_ref().is_some_and(|event| event.pool.is_counter_based);
        if is_counter_based && !self.is_in_order() {
            return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        let point = signal.as_ref().map(|event| event.next_point());
        let command = ListCommand { wait, operation, signal: point.clone() };
        match &self.kind {
            ListKind::Immediate { stream, .. } => stream.submit(vec![command.submit(work)])?,
            ListKind::Recorded { record, .. } => lock(record).commands.push(command),
        }
        if let (Some(event), Some(point)) = (signal, point) {
            *lock(&event.point) = point;
        }
        match &self.kind {
            ListKind::Immediate { traits, stream } if traits.is_synchronous() => {
                Ok(stream.wait(Timeout::Never)?)
            }
            _ => Ok(()),
        }
    }

    /// Returns the commands of a closed list, for a queue to execute.
    fn closed(&self) -> ZeResult<Vec<ListCommand>> {
        let ListKind::Recorded { record, .. } = &self.kind else {
            return Err(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE.into());
        };
        let record = lock(record);
        if !record.is_closed {
            return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        Ok(record.commands.clone())
    }

    /// Waits for the commands of an immediate list.
    pub(crate) fn wait(&self, timeout: Timeout) -> ZeResult {
        match &self.kind {
            ListKind::Immediate { stream, .. } => Ok(stream.wait(timeout)?),
            ListKind::Recorded { .. } => Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into()),
        }
    }
}

pub(crate) unsafe extern "C" fn create_list(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    desc: *const ze_command_list_desc_t,
    list: *mut ze_command_list_handle_t,
) -> ze_result_t {
    entry("zeCommandListCreate", |state| {
        state.context(context)?;
        let device = state.device(device)?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let desc = read_argument(desc)?;
            write_result(list, ze_command_list_handle_t::NULL)?;
            if desc.flags >= ZE_COMMAND_LIST_FLAG_COPY_OFFLOAD_HINT << 1 {
                return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
            }
            let ordinal = desc.commandQueueGroupOrdinal;
            if ordinal as usize >= GROUPS.len() {
                return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
            }
            let is_in_order = desc.flags & ZE_COMMAND_LIST_FLAG_IN_ORDER != 0;
            let kind = ListKind::Recorded { ordinal, is_in_order, record: Mutex::default() };
            let made = state.lists.insert(List { device, kind });
            Ok(write_result(list, ze_command_list_handle_t(handle(made)))?)
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
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let traits = QueueTraits::new(&read_argument(desc)?)?;
            write_result(list, ze_command_list_handle_t::NULL)?;
            let stream = state.core.stream();
            let made = state.lists.insert(List { device, kind: ListKind::Immediate { traits, stream } });
            Ok(write_result(list, ze_command_list_handle_t(handle(made)))?)
        }
    })
}

pub(crate) unsafe extern "C" fn destroy_list(list: ze_command_list_handle_t) -> ze_result_t {
    entry("zeCommandListDestroy", |state| Ok(state.lists.remove(number(list.0)).map(drop)?))
}

pub(crate) unsafe extern "C" fn close_list(list: ze_command_list_handle_t) -> ze_result_t {
    entry("zeCommandListClose", |state| {
        let list = state.lists.get(number(list.0))?;
        if let ListKind::Recorded { record, .. } = &list.kind {
            lock(record).is_closed = true;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn reset_list(list: ze_command_list_handle_t) -> ze_result_t {
    entry("zeCommandListReset", |state| {
        let list = state.lists.get(number(list.0))?;
        if let ListKind::Recorded { record, .. } = &list.kind {
            *lock(record) = Recording::default();
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn synchronize_list(
    list: ze_command_list_handle_t,
    nanoseconds: u64,
) -> ze_result_t {
    entry("zeCommandListHostSynchronize", |state| state.lists.get(number(list.0))?.wait(timeout(nanoseconds)))
}

/// A fence of a queue.
pub(crate) struct FenceObject(pub(crate) Arc<Event>);

pub(crate) unsafe extern "C" fn create_fence(
    queue: ze_command_queue_handle_t,
    desc: *const ze_fence_desc_t,
    fence: *mut ze_fence_handle_t,
) -> ze_result_t {
    entry("zeFenceCreate", |state| {
        state.queues.get(number(queue.0))?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let desc = read_argument(desc)?;
            if desc.flags & !ZE_FENCE_FLAG_SIGNALED != 0 {
                return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
            }
            write_result(fence, ze_fence_handle_t::NULL)?;
            let made = FenceObject(Arc::default());
            if desc.flags & ZE_FENCE_FLAG_SIGNALED != 0 {
                made.0.signal(now());
            }
            Ok(write_result(fence, ze_fence_handle_t(handle(state.fences.insert(made))))?)
        }
    })
}

pub(crate) unsafe extern "C" fn destroy_fence(fence: ze_fence_handle_t) -> ze_result_t {
    entry("zeFenceDestroy", |state| Ok(state.fences.remove(number(fence.0)).map(drop)?))
}

pub(crate) unsafe extern "C" fn query_fence(fence: ze_fence_handle_t) -> ze_result_t {
    entry("zeFenceQueryStatus", |state| {
        let fence = state.fences.get(number(fence.0))?;
        state.core.health.check()?;
        fence.0.signalled()?.map(drop).ok_or(ZE_RESULT_NOT_READY.into())
    })
}

pub(crate) unsafe extern "C" fn reset_fence(fence: ze_fence_handle_t) -> ze_result_t {
    entry("zeFenceReset", |state| {
        state.fences.get(number(fence.0))?.0.reset();
        Ok(())
    })
}

#[derive(Clone, Copy)]
pub(crate) struct EventPool {
    count: u32,
    has_times: bool,
    /// Each use of its events as a signal event replaces their state, without a reset.
    is_counter_based: bool,
}

pub(crate) struct EventObject {
    pool: EventPool,
    /// The last command that was appended with the event as its signal event.
    point: Mutex<Arc<SignalPoint>>,
}

/// The place in a command list where a command signals an event. Waits refer to the place and not
/// to the event, which can be used elsewhere by the time they execute.
pub(crate) struct SignalPoint {
    state: Mutex<PointState>,
    is_counter_based: bool,
}

#[derive(Default)]
struct PointState {
    event: Arc<Event>,
    /// A command that signals `event` was submitted.
    is_submitted: bool,
}

impl SignalPoint {
    fn new(is_counter_based: bool) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), is_counter_based })
    }

    /// Returns the event of the last execution, or of the first one if none was submitted.
    fn event(&self) -> Arc<Event> {
        Arc::clone(&lock(&self.state).event)
    }

    /// Returns the event for an execution to signal. Waiters of an earlier execution of a
    /// counter-based event keep the earlier one.
    fn submit(&self) -> Arc<Event> {
        let mut state = lock(&self.state);
        if self.is_counter_based && state.is_submitted {
            state.event = Arc::default();
        }
        state.is_submitted = true;
        Arc::clone(&state.event)
    }
}

impl EventObject {
    fn new(pool: EventPool) -> Self {
        let point = SignalPoint::new(pool.is_counter_based);
        if pool.is_counter_based {
            // A counter-based event without a command is complete.
            point.event().signal(now());
        }
        Self { pool, point: Mutex::new(point) }
    }

    fn point(&self) -> Arc<SignalPoint> {
        Arc::clone(&lock(&self.point))
    }

    fn event(&self) -> Arc<Event> {
        self.point().event()
    }

    /// Returns the point for a new command that signals it.
    fn next_point(&self) -> Arc<SignalPoint> {
        if self.pool.is_counter_based { SignalPoint::new(true) } else { self.point() }
    }
}

/// The points that a command waits for, and the event that it signals.
pub(crate) type Events = (Vec<Arc<SignalPoint>>, Option<Arc<EventObject>>);

/// Looks up the events of a command.
///
/// # Safety
/// `wait` is null or has `waits` elements.
pub(crate) unsafe fn resolve(
    state: &DriverState,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ZeResult<Events> {
    // SAFETY: the caller upholds the contract.
    let wait = unsafe { array(wait.cast_const(), waits, ZE_RESULT_ERROR_INVALID_SIZE) }?;
    let wait: ZeResult<Vec<_>> =
        wait.into_iter().map(|event| Ok(state.events.get(number(event.0))?.point())).collect();
    let signal = if signal.is_null() { None } else { Some(state.events.get(number(signal.0))?) };
    Ok((wait?, signal))
}

fn current(state: &DriverState, event: ze_event_handle_t) -> ZeResult<Arc<Event>> {
    Ok(state.events.get(number(event.0))?.event())
}

pub(crate) unsafe extern "C" fn create_pool(
    context: ze_context_handle_t,
    desc: *const ze_event_pool_desc_t,
    count: u32,
    devices: *mut ze_device_handle_t,
    pool: *mut ze_event_pool_handle_t,
) -> ze_result_t {
    entry("zeEventPoolCreate", |state| {
        state.context(context)?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let desc = read_argument(desc)?;
            for device in array(devices.cast_const(), count, ZE_RESULT_ERROR_INVALID_SIZE)? {
                state.device(device)?;
            }
            write_result(pool, ze_event_pool_handle_t::NULL)?;
            if desc.count == 0 {
                return Err(ZE_RESULT_ERROR_INVALID_SIZE.into());
            }
            let known = ZE_EVENT_POOL_FLAG_HOST_VISIBLE
                | ZE_EVENT_POOL_FLAG_IPC
                | ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP
                | ZE_EVENT_POOL_FLAG_KERNEL_MAPPED_TIMESTAMP;
            if desc.flags & !known != 0 {
                return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
            }
            let counter_based =
                read_argument(chain::find::<ze_event_pool_counter_based_exp_desc_t>(desc.pNext)).ok();
            let known = ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_IMMEDIATE
                | ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_NON_IMMEDIATE;
            if counter_based.is_some_and(|desc| desc.flags & !known != 0) {
                return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
            }
            let timed = ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP | ZE_EVENT_POOL_FLAG_KERNEL_MAPPED_TIMESTAMP;
            let made = state.pools.insert(EventPool {
                count: desc.count,
                has_times: desc.flags & timed != 0,
                is_counter_based: counter_based.is_some(),
            });
            Ok(write_result(pool, ze_event_pool_handle_t(handle(made)))?)
        }
    })
}

pub(crate) unsafe extern "C" fn destroy_pool(pool: ze_event_pool_handle_t) -> ze_result_t {
    entry("zeEventPoolDestroy", |state| Ok(state.pools.remove(number(pool.0)).map(drop)?))
}

pub(crate) unsafe extern "C" fn create_event(
    pool: ze_event_pool_handle_t,
    desc: *const ze_event_desc_t,
    event: *mut ze_event_handle_t,
) -> ze_result_t {
    entry("zeEventCreate", |state| {
        let pool = state.pools.get(number(pool.0))?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let desc = read_argument(desc)?;
            write_result(event, ze_event_handle_t::NULL)?;
            let known = ZE_EVENT_SCOPE_FLAG_SUBDEVICE | ZE_EVENT_SCOPE_FLAG_DEVICE | ZE_EVENT_SCOPE_FLAG_HOST;
            if (desc.signal | desc.wait) & !known != 0 {
                return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
            }
            if desc.index >= pool.count {
                return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
            }
            let made = EventObject::new(*pool);
            Ok(write_result(event, ze_event_handle_t(handle(state.events.insert(made))))?)
        }
    })
}

pub(crate) unsafe extern "C" fn destroy_event(event: ze_event_handle_t) -> ze_result_t {
    entry("zeEventDestroy", |state| Ok(state.events.remove(number(event.0)).map(drop)?))
}

pub(crate) unsafe extern "C" fn synchronize_event(event: ze_event_handle_t, nanoseconds: u64) -> ze_result_t {
    entry("zeEventHostSynchronize", |state| {
        let event = current(state, event)?;
        Ok(event.wait(timeout(nanoseconds), || state.core.health.check())?)
    })
}

pub(crate) unsafe extern "C" fn query_event(event: ze_event_handle_t) -> ze_result_t {
    entry("zeEventQueryStatus", |state| {
        let event = current(state, event)?;
        state.core.health.check()?;
        event.signalled()?.map(drop).ok_or(ZE_RESULT_NOT_READY.into())
    })
}

pub(crate) unsafe extern "C" fn reset_event(event: ze_event_handle_t) -> ze_result_t {
    entry("zeEventHostReset", |state| {
        let event = state.events.get(number(event.0))?;
        if event.pool.is_counter_based {
            return Err(ZE_RESULT_ERROR_UNSUPPORTED_FEATURE.into());
        }
        event.event().reset();
        Ok(())
    })
}

/// Returns the times of an event from a pool with timestamps. Device and context share a clock.
pub(crate) unsafe extern "C" fn query_kernel_timestamp(
    event: ze_event_handle_t,
    to: *mut ze_kernel_timestamp_result_t,
) -> ze_result_t {
    entry("zeEventQueryKernelTimestamp", |state| {
        let event = state.events.get(number(event.0))?;
        if !event.pool.has_times {
            return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        let times = event.event().signalled()?.ok_or(ZE_RESULT_NOT_READY)?;
        let data = ze_kernel_timestamp_data_t { kernelStart: times.start, kernelEnd: times.end };
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(to, ze_kernel_timestamp_result_t { global: data, context: data }) }?)
    })
}
