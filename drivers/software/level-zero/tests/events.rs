//! Events and recorded command lists: what each wait refers to, and how long a list uses memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod driver;

use std::sync::mpsc;
use std::time::Duration;

use driver::{DriverResult, User, error_code, run_in_child};
use level_zero_sys::*;

const NO_EVENT: ze_event_handle_t = ze_event_handle_t::NULL;

/// Long enough for a thread of the driver to make a mistake. No test depends on it to pass.
const PAUSE: Duration = Duration::from_millis(50);

fn result(answer: DriverResult) -> ze_result_t {
    answer.map_or_else(Failure::result, |()| ZE_RESULT_SUCCESS)
}

// SAFETY (of all calls): arguments as the specification requires; the memory outlives the commands.
impl User {
    fn pool(&self, flags: ze_event_pool_flags_t, next: *const std::ffi::c_void) -> ze_event_pool_handle_t {
        let desc = ze_event_pool_desc_t { pNext: next, flags, count: 4, ..Default::default() };
        let mut pool = ze_event_pool_handle_t::NULL;
        let devices = std::ptr::null_mut();
        // SAFETY: above.
        unsafe { self.api.zeEventPoolCreate(self.context, &raw const desc, 0, devices, &raw mut pool) }
            .unwrap();
        pool
    }

    fn event(&self, pool: ze_event_pool_handle_t, index: u32) -> ze_event_handle_t {
        let desc = ze_event_desc_t { index, ..Default::default() };
        let mut event = NO_EVENT;
        // SAFETY: above.
        unsafe { self.api.zeEventCreate(pool, &raw const desc, &raw mut event) }.unwrap();
        event
    }

    fn in_order(&self) -> ze_command_list_handle_t {
        let desc = ze_command_queue_desc_t {
            flags: ZE_COMMAND_QUEUE_FLAG_IN_ORDER,
            mode: ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS,
            ..Default::default()
        };
        let mut list = ze_command_list_handle_t::NULL;
        let device = self.devices[0];
        // SAFETY: above.
        unsafe {
            self.api.zeCommandListCreateImmediate(self.context, device, &raw const desc, &raw mut list)
        }
        .unwrap();
        list
    }

    fn recorded(&self, flags: ze_command_list_flags_t) -> ze_command_list_handle_t {
        let desc = ze_command_list_desc_t { flags, ..Default::default() };
        let mut list = ze_command_list_handle_t::NULL;
        let device = self.devices[0];
        // SAFETY: above.
        unsafe { self.api.zeCommandListCreate(self.context, device, &raw const desc, &raw mut list) }
            .unwrap();
        list
    }

    fn queue(&self) -> ze_command_queue_handle_t {
        let desc = ze_command_queue_desc_t { mode: ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS, ..Default::default() };
        let mut queue = ze_command_queue_handle_t::NULL;
        let device = self.devices[0];
        // SAFETY: above.
        unsafe { self.api.zeCommandQueueCreate(self.context, device, &raw const desc, &raw mut queue) }
            .unwrap();
        queue
    }

    fn copy(
        &self,
        list: ze_command_list_handle_t,
        to: usize,
        from: usize,
        signal: ze_event_handle_t,
        mut wait: ze_event_handle_t,
    ) -> DriverResult {
        let (to, from) = (std::ptr::without_provenance_mut(to), std::ptr::without_provenance(from));
        let waits = u32::from(!wait.is_null());
        // SAFETY: above.
        unsafe { self.api.zeCommandListAppendMemoryCopy(list, to, from, 16, signal, waits, &raw mut wait) }
    }

    fn signal(&self, event: ze_event_handle_t) {
        // SAFETY: above.
        unsafe { self.api.zeCommandListAppendSignalEvent(self.list, event) }.unwrap();
    }

    fn close(&self, list: ze_command_list_handle_t) {
        // SAFETY: above.
        unsafe { self.api.zeCommandListClose(list) }.unwrap();
    }

    fn execute(&self, queue: ze_command_queue_handle_t, mut list: ze_command_list_handle_t) -> DriverResult {
        let fence = ze_fence_handle_t::NULL;
        // SAFETY: above.
        unsafe { self.api.zeCommandQueueExecuteCommandLists(queue, 1, &raw mut list, fence) }
    }

    fn status(&self, event: ze_event_handle_t) -> ze_result_t {
        // SAFETY: above.
        result(unsafe { self.api.zeEventQueryStatus(event) })
    }

    fn wait(&self, event: ze_event_handle_t) {
        // SAFETY: above.
        unsafe { self.api.zeEventHostSynchronize(event, u64::MAX) }.unwrap();
    }
}

fn counter_based(user: &User) -> ze_event_pool_handle_t {
    let desc = ze_event_pool_counter_based_exp_desc_t::default();
    user.pool(ZE_EVENT_POOL_FLAG_HOST_VISIBLE, (&raw const desc).cast())
}

/// The commands of a destroyed list do not execute: their events are errors, also for the lists
/// that wait for them.
#[test]
fn event_of_destroyed_list_is_an_error() {
    run_in_child("event_of_destroyed_list_is_an_error", &[], || {
        let user = User::direct();
        let (events, gates) = (counter_based(&user), user.pool(0, std::ptr::null()));
        for event in [user.event(events, 0), user.event(gates, 0)] {
            let gate = user.event(gates, 1);
            let [destroyed, waiting] = [user.in_order(), user.in_order()];
            let [a, b, c] = [(); 3].map(|()| user.allocate(16).unwrap());
            user.copy(destroyed, a, b, event, gate).unwrap();
            user.copy(waiting, c, a, NO_EVENT, event).unwrap();
            let failed = Err(ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT);
            // SAFETY: arguments as the specification requires.
            unsafe {
                user.api.zeCommandListDestroy(destroyed).unwrap();
                let synchronized = user.api.zeEventHostSynchronize(event, u64::MAX);
                assert_eq!(synchronized.map_err(Failure::result), failed);
                let synchronized = user.api.zeCommandListHostSynchronize(waiting, u64::MAX);
                assert_eq!(synchronized.map_err(Failure::result), failed);
            }
            assert_eq!(user.status(event), ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT);
            // It can be signalled again: a counter-based event at once, another one after a reset.
            let again = user.in_order();
            // SAFETY: the test's own event.
            let _ = unsafe { user.api.zeEventHostReset(event) };
            user.copy(again, a, b, event, NO_EVENT).unwrap();
            user.wait(event);
        }
    });
}

/// A queue and a host thread that wait for the first use of an event see that one complete,
/// although the event is used again before.
#[test]
fn counter_based_event_used_again_completes_earlier_waits() {
    run_in_child("counter_based_event_used_again_completes_earlier_waits", &[], || {
        let user = User::direct();
        let events = counter_based(&user);
        let gates = user.pool(0, std::ptr::null());
        let (event, first, second) = (user.event(events, 0), user.event(gates, 0), user.event(gates, 1));
        let [one, other, again] = [user.in_order(), user.in_order(), user.in_order()];
        let [a, b, c] = [(); 3].map(|()| user.allocate(16).unwrap());

        user.copy(one, a, c, event, first).unwrap();
        user.copy(other, b, a, NO_EVENT, event).unwrap();
        std::thread::scope(|scope| {
            let (send, thread) = mpsc::channel();
            let user = &user;
            let waiter = scope.spawn(move || {
                // SAFETY: returns the id of the calling thread.
                send.send(unsafe { libc::gettid() }).unwrap();
                user.wait(event);
            });
            let stat = format!("/proc/self/task/{}/stat", thread.recv().unwrap());
            while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                std::thread::yield_now();
            }
            std::thread::sleep(PAUSE);
            user.copy(again, c, b, event, second).unwrap();
            assert_eq!(user.status(event), ZE_RESULT_NOT_READY);
            user.signal(first);
            waiter.join().unwrap();
        });
        // SAFETY: arguments as the specification requires.
        unsafe { user.api.zeCommandListHostSynchronize(other, u64::MAX) }.unwrap();
        assert_eq!(user.status(event), ZE_RESULT_NOT_READY);
        user.signal(second);
        user.wait(event);
    });
}

/// The specification's example of recorded lists that are executed twice: the second execution of a
/// list waits for the second execution of the list that signals, if that was submitted before.
#[test]
fn recorded_counter_based_event_is_signalled_by_each_execution() {
    run_in_child("recorded_counter_based_event_is_signalled_by_each_execution", &[], || {
        let user = User::direct();
        let events = counter_based(&user);
        let gates = user.pool(0, std::ptr::null());
        let (event, done, gate) = (user.event(events, 0), user.event(events, 1), user.event(gates, 0));
        let [producer, consumer] = [(); 2].map(|()| user.recorded(ZE_COMMAND_LIST_FLAG_IN_ORDER));
        let (queue, other) = (user.queue(), user.queue());
        let [a, b, c] = [(); 3].map(|()| user.allocate(16).unwrap());
        user.copy(producer, b, a, event, gate).unwrap();
        user.copy(consumer, c, b, done, event).unwrap();
        user.close(producer);
        user.close(consumer);
        assert_eq!(user.status(event), ZE_RESULT_NOT_READY);
        for round in 1..=3 {
            user.write(a, &[round; 16]).unwrap();
            user.execute(queue, producer).unwrap();
            user.execute(other, consumer).unwrap();
            std::thread::sleep(PAUSE);
            assert_eq!(user.status(done), ZE_RESULT_NOT_READY, "{round}");
            user.signal(gate);
            user.wait(done);
            assert_eq!(user.read(c, 16).unwrap(), [round; 16]);
            assert_eq!(user.status(event), ZE_RESULT_SUCCESS);
            // SAFETY: arguments as the specification requires.
            unsafe { user.api.zeEventHostReset(gate) }.unwrap();
        }
        // Recorded waits stay with the recorded signal when the event is used elsewhere.
        let blocked = user.in_order();
        user.write(a, &[9; 16]).unwrap();
        user.execute(queue, producer).unwrap();
        user.copy(blocked, a, a, event, gate).unwrap();
        user.signal(gate);
        user.wait(event);
        user.execute(other, consumer).unwrap();
        user.wait(done);
        assert_eq!(user.read(c, 16).unwrap(), [9; 16]);
    });
}

/// The restrictions of the specification, and that a failed call leaves the event as it was.
#[test]
fn counter_based_event_is_complete_before_use_and_cannot_be_reset() {
    run_in_child("counter_based_event_is_complete_before_use_and_cannot_be_reset", &[], || {
        let user = User::direct();
        let event = user.event(counter_based(&user), 0);
        let address = user.allocate(16).unwrap();
        assert_eq!(user.status(event), ZE_RESULT_SUCCESS);
        // SAFETY: arguments as the specification requires.
        let reset = unsafe { user.api.zeEventHostReset(event) };
        assert_eq!(error_code(reset), ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
        for list in [user.list, user.recorded(0)] {
            let answer = user.copy(list, address, address, event, NO_EVENT);
            assert_eq!(error_code(answer), ZE_RESULT_ERROR_INVALID_ARGUMENT, "not in order");
        }
        let closed = user.recorded(ZE_COMMAND_LIST_FLAG_IN_ORDER);
        user.close(closed);
        let answer = user.copy(closed, address, address, event, NO_EVENT);
        assert_eq!(error_code(answer), ZE_RESULT_ERROR_INVALID_ARGUMENT, "closed");
        let answer = user.copy(user.in_order(), address, address + 1, event, NO_EVENT);
        assert_eq!(error_code(answer), ZE_RESULT_ERROR_INVALID_ARGUMENT, "out of the allocation");
        assert_eq!(user.status(event), ZE_RESULT_SUCCESS);

        let counter = ze_event_pool_counter_based_exp_desc_t { flags: 4, ..Default::default() };
        let mut desc =
            ze_event_pool_desc_t { pNext: (&raw const counter).cast(), count: 1, ..Default::default() };
        let mut pool = ze_event_pool_handle_t::NULL;
        // SAFETY: as above.
        let mut create = |desc: *const _, devices| unsafe {
            user.api.zeEventPoolCreate(user.context, desc, devices, std::ptr::null_mut(), &raw mut pool)
        };
        assert_eq!(error_code(create(&raw const desc, 0)), ZE_RESULT_ERROR_INVALID_ENUMERATION);
        desc.pNext = std::ptr::null();
        assert_eq!(error_code(create(&raw const desc, 1)), ZE_RESULT_ERROR_INVALID_SIZE);
    });
}

#[test]
fn event_created_at_used_index_is_unsignalled() {
    run_in_child("event_created_at_used_index_is_unsignalled", &[], || {
        let user = User::direct();
        let pool = user.pool(ZE_EVENT_POOL_FLAG_HOST_VISIBLE, std::ptr::null());
        for _ in 0..2 {
            let event = user.event(pool, 1);
            assert_eq!(user.status(event), ZE_RESULT_NOT_READY);
            user.signal(event);
            assert_eq!(user.status(event), ZE_RESULT_SUCCESS);
            // SAFETY: the event is not used afterwards.
            unsafe { user.api.zeEventDestroy(event) }.unwrap();
        }
    });
}

/// Frees memory with the policy that blocks until all commands that use it have completed.
fn free_blocking(user: &User, address: usize) -> DriverResult {
    let desc = ze_memory_free_ext_desc_t {
        freePolicy: ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE,
        ..Default::default()
    };
    let pointer = std::ptr::without_provenance_mut(address);
    // SAFETY: arguments as the specification requires.
    unsafe { user.api.zeMemFreeExt(user.context, &raw const desc, pointer) }
}

/// A closed list is no command in execution: a blocking free returns, the memory can be allocated
/// again, and the list cannot be executed.
#[test]
fn blocking_free_ignores_closed_lists() {
    let settings = [("ZE_SOFT_MEMORY", "64K"), ("ZE_SOFT_DEVICES", "1")];
    run_in_child("blocking_free_ignores_closed_lists", &settings, || {
        let user = User::direct();
        let (list, queue) = (user.recorded(0), user.queue());
        let address = user.allocate(32).unwrap();
        user.copy(list, address, address + 16, NO_EVENT, NO_EVENT).unwrap();
        user.close(list);
        user.execute(queue, list).unwrap();
        let (send, freed) = mpsc::channel();
        std::thread::scope(|scope| {
            let user = &user;
            scope.spawn(move || send.send(free_blocking(user, address)).unwrap());
            let answer = freed.recv_timeout(Duration::from_secs(20));
            // A thread that does not return would block the end of the scope.
            answer.unwrap_or_else(|_| std::process::abort()).unwrap();
        });
        assert_eq!(user.count(c"memory"), 0);
        assert_eq!(error_code(user.execute(queue, list)), ZE_RESULT_ERROR_INVALID_ARGUMENT);
        let again = user.allocate(32).unwrap();
        user.free(again).unwrap();
    });
}

#[test]
fn blocking_free_waits_for_submitted_commands() {
    run_in_child("blocking_free_waits_for_submitted_commands", &[], || {
        let user = User::direct();
        let gate = user.event(user.pool(0, std::ptr::null()), 0);
        let address = user.allocate(32).unwrap();
        user.copy(user.in_order(), address, address + 16, NO_EVENT, gate).unwrap();
        std::thread::scope(|scope| {
            let free = scope.spawn(|| free_blocking(&user, address));
            std::thread::sleep(PAUSE);
            assert!(!free.is_finished());
            user.signal(gate);
            free.join().unwrap().unwrap();
        });
    });
}

/// Every append to a closed list fails. After a reset the list can be used.
#[test]
fn append_to_closed_list_is_an_error() {
    run_in_child("append_to_closed_list_is_an_error", &[], || {
        let user = User::direct();
        let list = user.recorded(0);
        let mut event = user.event(user.pool(0, std::ptr::null()), 0);
        let address = user.allocate(32).unwrap();
        let pointer: *mut std::ffi::c_void = std::ptr::without_provenance_mut(address);
        let mut appends = || {
            let (api, none, pattern) = (&user.api, std::ptr::null_mut(), 1_u8);
            let pattern = (&raw const pattern).cast();
            let (device, advice) = (user.devices[0], ZE_MEMORY_ADVICE_SET_READ_MOSTLY);
            // SAFETY: arguments as the specification requires.
            unsafe {
                [
                    api.zeCommandListAppendBarrier(list, NO_EVENT, 0, none),
                    api.zeCommandListAppendMemoryCopy(list, pointer, pointer, 16, NO_EVENT, 0, none),
                    api.zeCommandListAppendMemoryFill(list, pointer, pattern, 1, 16, NO_EVENT, 0, none),
                    api.zeCommandListAppendMemoryPrefetch(list, pointer, 16),
                    api.zeCommandListAppendMemAdvise(list, device, pointer, 16, advice),
                    api.zeCommandListAppendSignalEvent(list, event),
                    api.zeCommandListAppendWaitOnEvents(list, 1, &raw mut event),
                ]
                .map(result)
            }
        };
        assert_eq!(appends(), [ZE_RESULT_SUCCESS; 7]);
        user.close(list);
        assert_eq!(appends(), [ZE_RESULT_ERROR_INVALID_ARGUMENT; 7]);
        // SAFETY: no command of the list executes.
        unsafe { user.api.zeCommandListReset(list) }.unwrap();
        assert_eq!(appends(), [ZE_RESULT_SUCCESS; 7]);
    });
}
