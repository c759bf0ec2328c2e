//! The state of an endpoint behind its lock: the mesh, the operations in progress, and where their
//! completions go.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys::*;
use umf_link::mesh::{Completed, Completion, Mesh, Message, Process};

use crate::address_vector::AddressVector;
use crate::conversions::error_number;
use crate::counter::Counter;
use crate::preloaded::PreloadedMemory;
use crate::queue::{Entry, Queue};

/// Where completions of one direction go.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    pub queue: Option<Arc<Queue>>,
    /// Whether only operations with `FI_COMPLETION` leave an entry in the queue.
    pub is_selective: bool,
    /// Flags of operations that have none of their own.
    pub flags: u64,
    pub counter: Option<Arc<Counter>>,
    /// Those of reads and of writes: of this process when sending, of others when receiving.
    pub transfer_counters: [Option<Arc<Counter>>; 2],
}

impl Direction {
    /// Returns whether an operation with these flags leaves an entry in the queue.
    pub(crate) const fn reports(&self, flags: u64) -> bool {
        !self.is_selective || flags & FI_COMPLETION != 0
    }
}

/// An operation in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub context: *mut c_void,
    /// The flags of its completion: the kind of operation.
    pub flags: u64,
    /// Whether it leaves an entry in the queue.
    pub is_reported: bool,
}

/// The operations in progress, by the number that the mesh knows.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    list: Vec<Option<Operation>>,
    free: Vec<u32>,
}

impl Operations {
    pub(crate) fn add(&mut self, operation: Operation) -> u64 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.list.push(None);
            (self.list.len() - 1) as u32
        });
        self.list[number as usize] = Some(operation);
        u64::from(number)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Operation> {
        let operation = self.list.get_mut(usize::try_from(number).ok()?)?.take();
        if operation.is_some() {
            self.free.push(number as u32);
        }
        operation
    }

    fn get(&self, number: u64) -> Option<&Operation> {
        self.list.get(usize::try_from(number).ok()?)?.as_ref()
    }

    /// Returns the receives with this context.
    pub(crate) fn receives_of(&self, context: *mut c_void) -> Vec<u64> {
        let is_one = |operation: &&Option<Operation>| {
            operation.is_some_and(|operation| operation.context == context && operation.flags & FI_RECV != 0)
        };
        (0..).zip(&self.list).filter(|(_, operation)| is_one(operation)).map(|(number, _)| number).collect()
    }
}

/// What the lock of an endpoint protects.
#[derive(Debug)]
pub(crate) struct State {
    pub mesh: Mesh,
    pub preloaded: PreloadedMemory,
    pub operations: Operations,
    pub transmit: Direction,
    pub receive: Direction,
    pub vector: Option<Arc<AddressVector>>,
    /// The process of each address of the vector, as far as known.
    pub processes: Vec<Option<Process>>,
    /// The number of each process in the vector.
    pub numbers: Vec<Option<fi_addr_t>>,
    pub is_enabled: bool,
    pub min_multi_receive: usize,
}

// SAFETY: contexts are numbers that the application gets back.
unsafe impl Send for State {}

impl State {
    /// Returns the process of an address of the vector.
    #[inline]
    pub(crate) fn process(&mut self, number: fi_addr_t) -> Result<Process, c_int> {
        match self.processes.get(number as usize) {
            Some(Some(process)) => Ok(*process),
            _ => self.find_process(number),
        }
    }

    #[cold]
    fn find_process(&mut self, number: fi_addr_t) -> Result<Process, c_int> {
        let address = self.vector.as_ref().and_then(|vector| vector.get(number)).ok_or(FI_EINVAL)?;
        let process = self.mesh.insert(&address).map_err(|error| error_number(&error))?;
        let at = number as usize;
        if self.processes.len() <= at {
            self.processes.resize(at + 1, None);
        }
        self.processes[at] = Some(process);
        Ok(process)
    }

    /// Returns the number of a process in the vector.
    fn number(&mut self, process: Process) -> fi_addr_t {
        let at = process.index();
        if self.numbers.len() <= at {
            self.numbers.resize(at + 1, None);
        }
        if let Some(number) = self.numbers[at] {
            return number;
        }
        let address = self.mesh.address_of(process);
        let number = address.zip(self.vector.as_ref()).and_then(|(address, vector)| vector.find(&address));
        self.numbers[at] = number;
        number.unwrap_or(FI_ADDR_NOTAVAIL)
    }

    /// Reports an operation that has ended without the mesh.
    #[inline]
    pub(crate) fn report_sent(&self, operation: &Operation) {
        if let Some(counter) = &self.transmit.counter {
            counter.count(false);
        }
        if operation.is_reported {
            self.push_transmit(operation, None);
        }
    }

    /// Reports a transfer that has ended.
    pub(crate) fn report_transfer(&self, operation: &Operation, error: Option<c_int>) {
        let [reads, writes] = &self.transmit.transfer_counters;
        let counter = if operation.flags & FI_READ != 0 { reads } else { writes };
        if let Some(counter) = counter {
            counter.count(error.is_some());
        }
        if operation.is_reported || error.is_some() {
            self.push_transmit(operation, error);
        }
    }

    fn push_transmit(&self, operation: &Operation, error: Option<c_int>) {
        let Some(queue) = &self.transmit.queue else { return };
        queue.push(Entry {
            context: operation.context,
            flags: operation.flags,
            length: 0,
            buffer: core::ptr::null_mut(),
            data: 0,
            tag: 0,
            source: FI_ADDR_NOTAVAIL,
            error: error.map(|number| (number, 0)),
        });
    }

    /// Reports a message that was received or found, or an error.
    pub(crate) fn report_received(
        &mut self,
        operation: &Operation,
        message: Option<&Message>,
        (address, flags): (usize, u64),
        error: Option<(c_int, usize)>,
    ) {
        if flags & FI_PEEK == 0
            && let Some(counter) = &self.receive.counter
        {
            counter.count(error.is_some());
        }
        if !operation.is_reported && error.is_none() {
            return;
        }
        let source = message.map_or(FI_ADDR_NOTAVAIL, |message| self.number(message.from));
        let Some(queue) = &self.receive.queue else { return };
        let immediate = message.and_then(|message| message.immediate);
        queue.push(Entry {
            context: operation.context,
            flags: operation.flags
                | flags & !FI_PEEK
                | if immediate.is_some() { FI_REMOTE_CQ_DATA } else { 0 },
            length: message.map_or(0, |message| message.length - error.map_or(0, |(_, excess)| excess)),
            buffer: core::ptr::without_provenance_mut(address),
            data: immediate.unwrap_or(0),
            tag: message.map_or(0, |message| message.tag),
            source,
            error,
        });
    }

    /// Reports what the mesh has finished.
    pub(crate) fn report_completions(&mut self) {
        while let Some(Completion { token, result, message }) = self.mesh.next_completion() {
            if let Ok(Completed::Written { by, immediate, length }) = result {
                let source = self.number(by);
                let [_, writes] = &self.receive.transfer_counters;
                if let Some(counter) = writes {
                    counter.count(false);
                }
                if let Some(queue) = &self.receive.queue {
                    queue.push(Entry {
                        context: core::ptr::null_mut(),
                        flags: FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
                        length: length as usize,
                        buffer: core::ptr::null_mut(),
                        data: immediate,
                        tag: 0,
                        source,
                        error: None,
                    });
                }
                continue;
            }
            // Memory for many messages stays until its last one.
            let is_last = !matches!(result, Ok(Completed::Received { is_last: false, .. }));
            let operation =
                if is_last { self.operations.remove(token) } else { self.operations.get(token).copied() };
            let Some(operation) = operation else { continue };
            match result {
                Ok(Completed::Sent | Completed::Written { .. }) => self.report_sent(&operation),
                Ok(Completed::Received { message, address, is_last }) => {
                    let many = operation.flags & FI_MULTI_RECV;
                    let operation = Operation { flags: operation.flags & !FI_MULTI_RECV, ..operation };
                    let flags = if is_last { many } else { 0 };
                    self.report_received(&operation, Some(&message), (address, flags), None);
                }
                Ok(Completed::Cancelled) => {
                    self.report_received(&operation, None, (0, 0), Some((FI_ECANCELED, 0)));
                }
                Err(error) => {
                    let number = error_number(&error);
                    if operation.flags & FI_SEND != 0 {
                        if let Some(counter) = &self.transmit.counter {
                            counter.count(true);
                        }
                        self.push_transmit(&operation, Some(number));
                    } else {
                        let excess = match error {
                            umf_link::Error::Truncated { length, capacity } => length - capacity,
                            _ => message.map_or(0, |message| message.length),
                        };
                        self.report_received(&operation, message.as_ref(), (0, 0), Some((number, excess)));
                    }
                }
            }
        }
    }
}
